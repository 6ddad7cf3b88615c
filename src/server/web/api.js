// Access to the server: requests with the tab's API key, event streams, and errors as messages for the user.

const KEY = 'infinigen.key';

export const key = {
  get: () => sessionStorage.getItem(KEY) || '',
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

// An error with a message for the user. kind: 'key' | 'busy' | 'long' | 'lost' | 'other'.
export class Trouble extends Error {
  constructor(kind, message, retryAfter = 0) {
    super(message);
    this.kind = kind;
    this.retryAfter = retryAfter;  // seconds
  }
}

const whole = (n) => Number(n).toLocaleString('en');

// Token counts of a prompt that is too long and of the context: from fields if they exist, otherwise the two numbers in the message.
function counts(error) {
  const text = String(error.message || '').replace(/(\d),(?=\d{3})/g, '$1');
  const numbers = (text.match(/\d+/g) || []).map(Number);
  const prompt = error.prompt_tokens ?? error.n_prompt_tokens ?? Math.max(...numbers);
  const context = error.context_tokens ?? error.n_ctx ?? Math.min(...numbers.filter((n) => n > 1));
  return Number.isFinite(prompt) && Number.isFinite(context) && prompt !== context ? [prompt, context] : null;
}

function troubleOf(status, error, retryAfter) {
  const message = String(error.message || '').trim();
  if (status === 401 || status === 403)
    return new Trouble('key', key.get() ? 'The server does not accept this key.' : 'This server needs an API key.');
  if (status === 429)
    return new Trouble('busy', 'The server is busy.', Math.min(retryAfter || 1, 600));
  if (status === 413) return new Trouble('long', 'This text is longer than the server accepts.');
  if (status === 503) return new Trouble('busy', message || 'The server is not ready yet.', retryAfter || 2);
  if (/context/.test(`${error.code} ${message}`)) {
    const both = counts(error);
    return new Trouble('long', both
      ? `This conversation has ${whole(both[0])} tokens, and the context holds ${whole(both[1])}. Start a new chat or shorten the text.`
      : message);
  }
  const end = /[.!?]$/.test(message) ? '' : '.';
  return new Trouble('other', message ? `The server says: ${message}${end}` : `The server answered with status ${status}.`);
}

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  if (options.body) headers['Content-Type'] = 'application/json';
  let response;
  try {
    // Not relative to the page's address, which may contain credentials: fetch refuses such URLs.
    response = await fetch(new URL(path, location.origin + location.pathname), { ...options, headers, cache: 'no-store' });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Trouble('lost', 'The server cannot be reached.');
  }
  if (response.ok) return response;
  let body = {};
  try {
    body = await response.json();
  } catch { /* not JSON, for example a proxy's error page: the status is enough */ }
  throw troubleOf(response.status, Object(body?.error), Number(response.headers.get('Retry-After')));
}

export const getJson = async (path) => (await ask(path)).json();

// The data of each server-sent event of a stream, as text.
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === '' && data.length) {
          yield data.join('\n');
          data = [];
        } else if (line.startsWith('data:')) {
          data.push(line.slice(line[5] === ' ' ? 6 : 5));
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function* objectsOf(response) {
  try {
    for await (const data of eventsOf(response)) {
      if (data === '[DONE]') return;
      yield JSON.parse(data);
    }
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Trouble('lost', 'The connection broke off before the answer was complete.');
  }
  throw new Trouble('lost', 'The connection broke off before the answer was complete.');
}

// Chunks of a chat completion; an error in the middle of the stream is thrown like one at its start.
export async function* chat(body, signal) {
  const response = await ask('v1/chat/completions', { method: 'POST', body: JSON.stringify(body), signal });
  for await (const chunk of objectsOf(response)) {
    if (chunk.error) throw troubleOf(Number(chunk.error.code) || 0, chunk.error, 0);
    yield chunk;
  }
}

// Events of GET /kv, until the stream ends or `signal` aborts it.
export async function* pictures(signal) {
  const response = await ask('kv', { headers: { Accept: 'text/event-stream' }, signal });
  for await (const data of eventsOf(response)) yield JSON.parse(data);
}
