// Times, durations, sizes and counts as people read them.

const TWO = "2-digit";
const TIME = new Intl.DateTimeFormat(undefined, { hour: TWO, minute: TWO, second: TWO, hourCycle: "h23" });
const DAY = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });

/** A point in time (epoch milliseconds); the day is said when it is not today's. -1 and 0 are none. */
export function time(ms) {
  if (!(ms > 0)) return "–";
  const date = new Date(ms);
  const clock = TIME.format(date);
  return date.toDateString() === new Date().toDateString() ? clock : `${DAY.format(date)}, ${clock}`;
}

/** A span in its two greatest units. */
export function duration(ms) {
  if (!(ms >= 0)) return "–";
  if (ms < 100) return `${Math.round(ms)}ms`;
  if (ms < 10_000) return `${(Math.floor(ms / 100) / 10).toFixed(1)}s`;
  const seconds = Math.floor(ms / 1000);
  if (seconds < 60) return `${seconds}s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes}m ${seconds % 60}s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return `${hours}h ${minutes % 60}m`;
  return `${Math.floor(hours / 24)}d ${hours % 24}h`;
}

/** Bytes in binary units. */
export function bytes(count) {
  if (typeof count !== "number" || !Number.isFinite(count) || count < 0) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let value = count;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

/** A count with separators. */
export function count(value) {
  return typeof value === "number" && Number.isFinite(value) ? value.toLocaleString("en") : "–";
}

/** One thing, several things. */
export function plural(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}
