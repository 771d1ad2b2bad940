// Whether the server is there, and when the page has to ask again.
// The server's events say when; where it has none the page asks at its refresh interval.

import { ApiError, Unreachable, request, witness } from "./api.js";

const RETRY_MS = 1000;
const SILENCE_MS = 5_000; // an event comes every interval, so this is long

export class Connection {
  /**
   * @param onChange told of every change of `state`: connecting, live (events), polling, lost.
   * @param onRefresh told when what is shown may have changed.
   */
  constructor(onChange, onRefresh) {
    this.state = "connecting";
    this.lastHeard = Date.now();
    this.interval = 3000;
    this.onChange = onChange;
    this.onRefresh = onRefresh;
    this.mode = "connecting";
    this.stopped = null;
    witness.heard = () => this.heard();
    witness.silent = () => this.silent();
  }

  heard() {
    this.lastHeard = Date.now();
    const back = this.state === "lost";
    this.become(this.mode);
    if (back) this.onRefresh();
  }

  silent() {
    this.become("lost");
  }

  become(state) {
    if (state === this.state) return;
    this.state = state;
    this.onChange(this);
  }

  /** Follow the server's events until `stop`. */
  async start(intervalMs) {
    this.stop();
    this.interval = Math.max(intervalMs, 500);
    const stopped = new AbortController();
    this.stopped = stopped;
    let events = true;
    while (!stopped.signal.aborted) {
      if (events) events = await this.follow(stopped.signal);
      else {
        this.mode = "polling";
        if (this.state !== "lost") this.become("polling");
        await this.onRefresh();
      }
      await pause(events ? RETRY_MS : this.interval, stopped.signal);
    }
  }

  stop() {
    this.stopped?.abort();
  }

  /** One stream of events; false when the server has none. */
  async follow(stop) {
    const silence = new AbortController();
    let timer = 0;
    const listen = () => {
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), Math.max(SILENCE_MS, 4 * this.interval));
    };
    listen();
    try {
      const response = await request("events", {
        headers: { Accept: "text/event-stream" },
        signal: AbortSignal.any([stop, silence.signal]),
      });
      this.mode = "live";
      this.heard();
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        listen();
        this.heard();
        const blocks = (rest + value).split("\n\n");
        rest = blocks.pop();
        if (blocks.some((block) => block.includes("event:"))) this.onRefresh();
      }
      this.silent(); // the server closes a stream only when it goes
    } catch (error) {
      if (stop.aborted) return true;
      if (error instanceof ApiError) return ![401, 404, 405, 501].includes(error.status);
      this.silent();
      if (!(error instanceof Unreachable) && error.name !== "AbortError" && error.name !== "TypeError") throw error;
    } finally {
      clearTimeout(timer);
    }
    return true;
  }
}

function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}
