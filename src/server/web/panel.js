// The panel around the picture of the KV cache. While the panel is visible it follows GET /kv and describes the picture
// in a sentence, in numbers, and from time to time for screen readers.
import { pictures } from './api.js';
import { Picture } from './picture.js';

const AGAIN_MS = [1000, 2000, 5000, 15000];  // delays before the stream is requested again
const SAY_MS = 10000;                        // interval between summaries for a screen reader
const SENTENCE_MS = 400;                     // interval between updates of the text, so that it can be read

const $ = (id) => document.getElementById(id);

export const percent = (x) => {
  if (x === null || x === undefined || !Number.isFinite(x)) return '–';
  return x > 0 && x < 0.0995 ? `${(100 * x).toFixed(1)}\u00a0%` : `${Math.round(100 * x)}\u00a0%`;
};
export const bytes = (n) => {
  if (n === null || n === undefined || !Number.isFinite(n)) return '–';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (n >= 1000 && unit < units.length - 1) { n /= 1024; ++unit; }
  return `${n >= 100 || unit === 0 ? Math.round(n) : n.toFixed(1)}\u00a0${units[unit]}`;
};
const whole = (n) => Number(n).toLocaleString('en');

// Checks that an event can be drawn, because it comes from another program.
const isPicture = (e) => e && Number.isFinite(e.rows) && Array.isArray(e.layers) && e.layers.length > 0 &&
  Array.isArray(e.layers[0]) && e.layers[0].length > 0 && e.layers.every((l) => Array.isArray(l) && l.length === e.layers[0].length);

// The lit share of the picture: the share of the cache that the step read.
function litShare(layers) {
  let sum = 0;
  for (const layer of layers) for (const value of layer) sum += value;
  return sum / (255 * layers.length * layers[0].length);
}

export class Panel {
  #picture = new Picture($('picture'));
  #stop = null;           // AbortController of the open stream
  #own = '';              // id of the page's own request, once known
  #full = false;          // whether that request asked for the preset full
  #ownAt = -Infinity;     // time of the latest event of that request
  #mark = null;           // {at: relative position in the prompt's text, rows: of the prompt, once known}
  #saidAt = -Infinity;
  #pending = null;        // the newest event that is not shown in the text yet
  #writing = 0;           // timer
  #failures = 0;

  constructor() {
    const follow = () => (document.visibilityState === 'visible' && $('panel').open ? this.#follow() : this.#stop?.abort());
    document.addEventListener('visibilitychange', follow);
    $('panel').addEventListener('toggle', follow);
    follow();
  }

  // begin: the page requests an answer; own: its id is known. Its pictures have precedence over those of other requests.
  begin(full) { [this.#own, this.#full] = ['', full]; }
  own(id) { this.#own = id; }
  // Marks a relative position in the prompt; null removes the mark.
  mark(at) {
    this.#mark = at === null ? null : { at, rows: 0 };
    $('mark').hidden = true;
  }
  // Reconnects, after a new key or when the server is back.
  again() {
    this.#failures = 0;
    if (this.#stop) this.#stop.abort();
    else this.#follow();
  }

  async #follow() {
    if (this.#stop) return;
    const stop = (this.#stop = new AbortController());
    try {
      for await (const event of pictures(stop.signal)) {
        this.#failures = 0;
        if (isPicture(event)) this.#show(event);
      }
    } catch { /* lost or refused: requested again below */ }
    this.#stop = null;
    if (document.visibilityState !== 'visible' || !$('panel').open) return;
    setTimeout(() => $('panel').open && this.#follow(), stop.signal.aborted ? 0 : AGAIN_MS[Math.min(this.#failures++, AGAIN_MS.length - 1)]);
  }

  #show(event) {
    const now = performance.now();
    // The ids may have different prefixes.
    const own = !this.#own || String(event.request).split('-').pop() === this.#own.split('-').pop();
    if (own && this.#own) this.#ownAt = now;
    if (own && this.#full) event.kv = 'full';
    if (!own && now - this.#ownAt < 1000) return;
    this.#picture.show(event.layers);
    if (own) this.#placeMark(event.rows);
    else $('mark').hidden = true;
    this.#pending = event;
    if (!this.#writing) this.#writePending();
  }

  // Writes at most one event per SENTENCE_MS, and always the last one.
  #writePending() {
    this.#writing = 0;
    if (!this.#pending) return;
    this.#write(this.#pending, litShare(this.#pending.layers));
    this.#pending = null;
    this.#writing = setTimeout(() => this.#writePending(), SENTENCE_MS);
  }

  #placeMark(rows) {
    if (!this.#mark) return;
    this.#mark.rows ||= rows;
    const at = (this.#mark.at * this.#mark.rows) / rows;
    $('mark').hidden = false;
    $('mark').style.left = `${(100 * at).toFixed(2)}%`;
    $('mark').classList.toggle('left', at > 0.7);
  }

  #write(event, lit) {
    const set = (id, text) => { if ($(id).textContent !== text) $(id).textContent = text; };
    const all = lit > 0.995;
    $('panel').classList.remove('idle');
    set('sentence', !all
      ? `Each step reads only the lit ${percent(lit)} of the cache. The rest waits in memory.`
      : event.kv === 'full'
        ? 'Each step reads the whole cache: everything is lit.'
        : 'A short text is read whole. In a long one, only what matters lights up.');
    set('extent', `${whole(event.rows)} tokens, ${event.layers.length} layers`);
    set('n-lit', percent(lit));
    set('n-selected', percent(event.selected_ratio));
    $('missed').hidden = !Number.isFinite(event.tail_mass);
    set('n-missed', percent(event.tail_mass));
    set('n-hits', percent(event.hit_ratio));
    set('n-bytes', event.bytes_per_s === null ? '–' : `${bytes(event.bytes_per_s)}/s`);
    $('fetched').hidden = !Number.isFinite(event.fetched_bytes_per_s);
    set('n-fetched', `${bytes(event.fetched_bytes_per_s)}/s`);
    set('n-requests', event.waiting ? `${event.running} + ${event.waiting} waiting` : `${event.running ?? '–'}`);
    const limit = event.pool_limit_bytes;
    const used = limit > 0 ? Math.min(1, event.pool_bytes / limit) : 0;
    const cached = event.prefix_bytes > 0 ? `, and ${bytes(event.prefix_bytes)} cached from earlier texts` : '';
    set('n-pool', (limit > 0 ? `${bytes(event.pool_bytes)} of ${bytes(limit)}` : bytes(event.pool_bytes)) + cached);
    $('pool').setAttribute('aria-valuenow', Math.round(100 * used));
    $('pool').setAttribute('aria-valuetext', $('n-pool').textContent);
    $('pool').firstElementChild.style.width = `${(100 * used).toFixed(1)}%`;
    this.#say(event, lit, used);
  }

  #say(event, lit, used) {
    const missed = Number.isFinite(event.tail_mass) ? `, ${percent(event.tail_mass)} of the attention went to the rest by estimate` : '';
    const hits = Number.isFinite(event.hit_ratio) ? `, hit ratio ${percent(event.hit_ratio)}` : '';
    const text = `${whole(event.rows)} tokens in ${event.layers.length} layers: the last step read ${percent(lit)} of the cache${missed}${hits}; ` +
      `the pool is ${percent(used)} full.`;
    $('picture').setAttribute('aria-label', text);
    if (performance.now() - this.#saidAt < SAY_MS) return;
    this.#saidAt = performance.now();
    $('say-picture').textContent = text;
  }
}
