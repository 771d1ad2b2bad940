// The batches of streaming queries that this page has seen. The server tells the last batch only, so charts begin when a
// job is first looked at; they go on while other pages are shown only where these ask for the job.

const MOST = 240; // batches of a query
const MOST_QUERIES = 64;

const seen = new Map(); // by run id: {task, query, points}, the one that was told last at the end

/** Note what a job tells of its queries; a batch that was seen is noted once. Returns those of this job. */
export function remember(job) {
  const found = [];
  for (const vertex of job.vertices) {
    for (const query of job.spark?.[vertex.id]?.queries ?? []) {
      const known = seen.get(query["run-id"]) ?? { points: [] };
      seen.delete(query["run-id"]);
      seen.set(query["run-id"], known);
      known.task = vertex.name;
      known.query = query;
      const point = pointOf(query, job.now);
      const last = known.points.at(-1);
      if (point !== null && (last === undefined || !isSame(last, point))) known.points.push(point);
      if (known.points.length > MOST) known.points.shift();
      found.push(known);
    }
  }
  for (const run of seen.keys()) {
    if (seen.size <= MOST_QUERIES) break;
    seen.delete(run);
  }
  return found;
}

function pointOf(query, now) {
  if (query["batch-duration"] === undefined) return null;
  const lags = (query.sources ?? []).map((source) => source.lag);
  return {
    at: now,
    batch: query.batch,
    read: query["input-rows-per-second"],
    done: query["processed-rows-per-second"],
    took: query["batch-duration"],
    rows: query["state-rows"],
    bytes: query["state-bytes"],
    lag: lags.length > 0 && lags.every((lag) => lag !== undefined) ? lags.reduce((a, b) => a + b) : null,
  };
}

// A query without new data reports the same batch with other figures.
function isSame(one, other) {
  return Object.keys(one).every((name) => name === "at" || one[name] === other[name]);
}
