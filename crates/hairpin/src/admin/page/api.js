// Requests to the API of this server. The token is in a header field, because a page of another site cannot make a browser send it.

const KEY = "hairpin-token";

export const token = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (text) => (text ? sessionStorage.setItem(KEY, text) : sessionStorage.removeItem(KEY)),
};

/** An error of a request, with the text of the server. */
export class Failure extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

function headers(more = {}) {
  const own = token.get();
  return own ? { Authorization: `Bearer ${own}`, ...more } : more;
}

async function refuse(response) {
  let detail = `the server answered ${response.status}`;
  try {
    const problem = await response.json();
    detail = [problem.detail, ...(problem.mistakes ?? [])].join("\n");
  } catch {
    // The body is not a JSON problem: show the status only.
  }
  throw new Failure(response.status, detail);
}

/** Sends a request and returns the JSON of its response. */
export async function call(method, path, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value));
  const url = `/api/v1${path}${query.size ? `?${query}` : ""}`;
  const response = await fetch(url, { method, headers: headers(), cache: "no-store" });
  if (!response.ok) await refuse(response);
  return response.json();
}

/** Calls `sample` with each row of the event stream. Returns when the stream ends. EventSource cannot send a token, so this uses fetch. */
export async function follow(sample, signal) {
  const response = await fetch("/api/v1/events", { headers: headers(), signal, cache: "no-store" });
  if (!response.ok) await refuse(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) {
      const data = event.split("\n").find((line) => line.startsWith("data: "));
      if (data) sample(JSON.parse(data.slice(6)));
    }
  }
}
