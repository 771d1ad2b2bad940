// Whether this page shows a cluster or the history of clusters, as the server says at first.

export const mode = {
  history: false, // nothing runs and nothing can be changed
  clusters: [], // of a history: {name, directory, damaged}
};

export function setMode(config) {
  mode.history = Boolean(config.features?.["web-history"]);
  mode.clusters = config.clusters ?? [];
}

/** The name of the shown cluster as a part of a query; empty where there is only one. */
export function clusterQuery(cluster) {
  return cluster ? { cluster } : {};
}
