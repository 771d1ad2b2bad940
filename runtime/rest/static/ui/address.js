// Addresses of pages: what is chosen on a page (a filter, an order) stands behind a question mark in the hash.

/** An address with other values in its query; a value that is null is left out. */
export function withQuery(path, query, changes) {
  const changed = new URLSearchParams(query);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null) changed.delete(name);
    else changed.set(name, value);
  }
  const text = changed.toString();
  return text ? `${path}?${text}` : path;
}

/**
 * The order of a table as the address has it: `sort` names a column, with a minus in front the order is descending.
 * @param columns those of `table`; one with `sort` ({name, value}) can be sorted by.
 * @param usual the order where the address has none, such as "-started".
 */
export function sortingOf(columns, path, query, usual) {
  const names = columns.filter((column) => column.sort).map((column) => column.sort.name);
  const given = query.get("sort") ?? "";
  const chosen = names.includes(given.replace(/^-/, "")) ? given : usual;
  const by = chosen.replace(/^-/, "");
  const down = chosen.startsWith("-");
  const href = (name) => withQuery(path, query, { sort: name === by && !down ? `-${name}` : name });
  return { by, down, href };
}

/** The rows in that order; rows of equal values stay as they are. */
export function inOrder(rows, columns, { by, down }) {
  const { value } = columns.find((column) => column.sort?.name === by).sort;
  const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b);
  return [...rows].sort((a, b) => (down ? -1 : 1) * compare(value(a), value(b)));
}
