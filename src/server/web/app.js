// The page: conversations, message box, settings. panel.js has the picture of the KV cache, api.js the requests to the server.
import { Trouble, chat as streamChat, getJson, key } from './api.js';
import { hiddenCode } from './demo.js';
import { Markdown, copyButton, el } from './markdown.js';
import { Panel, bytes, percent } from './panel.js';
import { deleteChat, isChatKey, listChats, newChat, requestFields, saveChat, saveSettings, settings } from './store.js';

const PAINT_MS = 60;              // interval between renderings of a streamed answer
const SAVE_MS = 3000;             // interval between saves of it in the browser
const SAY_MS = 2500;              // interval between announcements of it for a screen reader
const LONG_CHARACTERS = 900;      // longer messages of the user are collapsed
const FILE_BYTES = 4 << 20;       // below the server's limit for a body
const MEET_MS = 2000;             // until the next request to a server that is not ready
const DEMO_CHARACTERS = 14000;    // about 4,000 tokens

const $ = (id) => document.getElementById(id);
const whole = (n) => Number(n).toLocaleString('en');
const panel = new Panel();

let current = newChat();
let running = null;               // AbortController of the answer that is being streamed
let server = { kv: 'infinigen', switchable: true, context: 8192 };

// ---- Messages -----------------------------------------------------------------------------------------------------

function button(label, act, kind = 'quiet small') {
  return el('button', { type: 'button', class: kind, onclick: act }, label);
}

function userNode({ content }) {
  const text = el('div', { class: 'text' }, content);
  const node = el('article', { class: 'message user', 'aria-label': 'You' }, text);
  if (content.length <= LONG_CHARACTERS) return node;
  // Collapsed, it shows its beginning and its end, where the question usually is.
  const end = content.slice(Math.max(content.lastIndexOf('\n\n'), content.length - 240)).trim();
  const fold = button('Show all', () => show(fold.getAttribute('aria-expanded') === 'false'));
  const show = (all) => {
    text.textContent = all ? content : `${content.slice(0, content.lastIndexOf(' ', 180) + 1 || 180).trimEnd()} …\n\n${end}`;
    fold.textContent = all ? 'Show less' : 'Show all';
    fold.setAttribute('aria-expanded', all);
  };
  show(false);
  node.append(el('div', { class: 'foot' }, el('span', {}, `${whole(content.length)} characters`), fold));
  return node;
}

// "42 tokens, 31.2 a second | first after 0.18 s | …"
function usageParts({ usage, kv, seconds, first, note }) {
  const parts = [];
  if (note) parts.push(note);
  if (usage) {
    const speed = usage.completion_tokens > 1 && seconds > first ? (usage.completion_tokens - 1) / (seconds - first) : 0;
    parts.push(`${whole(usage.completion_tokens)} tokens${speed ? `, ${speed.toFixed(speed < 10 ? 1 : 0)} tokens/s` : ''}`);
  }
  if (first) parts.push(`first token after ${first < 1 ? `${Math.round(1000 * first)} ms` : `${first.toFixed(1)} s`}`);
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens;
    parts.push(`prompt ${whole(usage.prompt_tokens)}${cached ? `, ${whole(cached)} cached` : ''}`);
  }
  if (kv) {
    const read = kv.attended_ratio ?? kv.selected_ratio;
    if (Number.isFinite(read)) parts.push(`read ${percent(read)} of the cache`);
    if (Number.isFinite(kv.hit_ratio)) parts.push(`hits ${percent(kv.hit_ratio)}`);
    if (kv.fetched_bytes_per_step > 0) parts.push(`${bytes(kv.fetched_bytes_per_step)} a step`);
  }
  return parts;
}

function answerNode(message) {
  const text = el('div', { class: 'text' });
  const foot = el('div', { class: 'foot' });
  const node = el('article', { class: 'message answer', 'aria-label': 'Answer' }, text, foot);
  const markdown = new Markdown(text);
  const view = {
    node,
    paint: () => markdown.set(message.content),
    wait: (words) => foot.replaceChildren(el('span', { class: 'waiting' }, words)),
    finish() {
      markdown.set(message.content);
      const usage = el('span', { class: 'usage' });
      usageParts(message).forEach((part) => usage.append(el('span', {}, part)));
      foot.replaceChildren(usage, el('span', { class: 'acts' }, copyButton(() => message.content), button('Again', () => again(message))));
    },
  };
  return view;
}

function addMessage(message) {
  $('log').querySelector('.welcome')?.remove();
  if (message.role === 'user') return void $('log').append(userNode(message));
  const view = answerNode(message);
  $('log').append(view.node);
  return view;
}

function welcome() {
  const ask = (text) => button(text, () => submit(text), 'chip');
  return el('div', { class: 'welcome' },
    el('h2', {}, 'A model that reads only what matters'),
    el('p', {}, 'For every word it writes, a language model reads its memory of the whole text: the KV cache. InfiniGen guesses ' +
      'which parts of it matter now and reads only those. Nothing is thrown away. The picture above shows it, step by step.'),
    el('div', { class: 'chips' },
      button('Hide a code in a long story and ask for it', demo, 'chip first'),
      ask('Tell me a story about a fox.'),
      ask('What can you do?')));
}

function showChat(chat) {
  stop();
  current = chat;
  $('log').replaceChildren();
  for (const message of chat.messages) addMessage(message)?.finish();
  if (chat.messages.length === 0) $('log').append(welcome());
  panel.mark(null);
  toNewest(chat.messages.length > 0);
  showList();
}

// ---- Scrolling ----------------------------------------------------------------------------------------------------

const atNewest = () => $('log').scrollHeight - $('log').scrollTop - $('log').clientHeight < 60;
function toNewest(always) {
  if (always) $('log').scrollTop = $('log').scrollHeight;
  $('newest').hidden = atNewest();
}
$('log').addEventListener('scroll', () => toNewest(false), { passive: true });
$('newest').addEventListener('click', () => toNewest(true));

// ---- Answers ------------------------------------------------------------------------------------------------------

// Announces whole sentences to a screen reader, not every piece.
const speech = { said: 0, at: 0 };
function say(text, all) {
  if (!all && performance.now() - speech.at < SAY_MS) return;
  const end = all ? text.length : Math.max(text.lastIndexOf('. '), text.lastIndexOf('\n'), text.lastIndexOf('! '), text.lastIndexOf('? ')) + 1;
  if (end <= speech.said) return;
  $('say-answer').textContent = text.slice(speech.said, end);
  Object.assign(speech, { said: end, at: performance.now() });
}

function setRunning(controller) {
  running = controller;
  $('send').textContent = running ? 'Stop' : 'Send';
  $('send').classList.toggle('stop', Boolean(running));
  $('log').setAttribute('aria-busy', Boolean(running));
}

function stop() {
  running?.abort();
}

function submit(text, extra = {}) {
  if (running || !text.trim()) return;
  clearTroubles();
  const message = { role: 'user', content: text, ...extra };
  current.messages.push(message);
  addMessage(message);
  save();
  answer();
}

function demo() {
  const { text, title, mark } = hiddenCode(Math.min(DEMO_CHARACTERS, server.context * 2));
  submit(text, { title, mark });
}

// Generates the answer again, with the current settings.
function again(message) {
  if (running) return;
  const at = current.messages.indexOf(message);
  if (at < 0) return;
  current.messages.splice(at);
  showChat(current);
  answer();
}

const requestBody = () => ({
  messages: [
    ...(settings.system.trim() ? [{ role: 'system', content: settings.system }] : []),
    // Skip questions that were never answered: not every template accepts two user messages in a row.
    ...current.messages.filter((m, i, all) => m.role !== 'user' || all[i + 1]?.role !== 'user').map(({ role, content }) => ({ role, content })),
  ],
  stream: true,
  stream_options: { include_usage: true },
  ...(server.model ? { model: server.model } : {}),
  ...requestFields(),
});

async function answer() {
  const chat = current;
  const body = requestBody();
  const message = { role: 'assistant', content: '' };
  const view = addMessage(message);
  const controller = new AbortController();
  let painted = 0, saved = performance.now(), trouble = null;
  const began = performance.now();
  setRunning(controller);
  view.wait('Reading');
  panel.begin(body.kv?.preset === 'full');
  if (chat.messages.at(-1).mark) panel.mark(chat.messages.at(-1).mark);
  Object.assign(speech, { said: 0, at: performance.now() });
  toNewest(true);
  try {
    for await (const chunk of streamChat(body, controller.signal)) {
      if (chunk.id) panel.own(chunk.id);
      const choice = chunk.choices?.[0];
      if (choice?.delta?.content) {
        const now = performance.now();
        message.first ??= (now - began) / 1000;
        message.content += choice.delta.content;
        message.seconds = (now - began) / 1000;
        if (now - painted > PAINT_MS) {
          const stays = atNewest();
          view.paint();
          if (painted === 0) view.wait('Writing');
          painted = now;
          toNewest(stays);
          say(message.content, false);
        }
        if (now - saved > SAVE_MS) {
          saved = now;
          saveChat({ ...chat, messages: [...chat.messages, message] });
        }
      }
      if (choice?.finish_reason === 'length') message.note = 'cut off at the longest answer allowed';
      if (chunk.usage) message.usage = chunk.usage;
      if (chunk.kv_stats) message.kv = chunk.kv_stats;
    }
  } catch (error) {
    if (controller.signal.aborted) message.note = 'stopped';
    else trouble = error instanceof Trouble ? error : new Trouble('other', 'Something on this page went wrong.');
    if (trouble && !(error instanceof Trouble)) console.error(error);
    if (trouble && message.content) message.note = 'broken off';
  }
  if (running === controller) setRunning(null);
  const stays = atNewest();
  if (message.content || !trouble) chat.messages.push(message);
  if (message.content || !trouble) view.finish();
  else view.node.remove();
  if (trouble && chat === current) showTrouble(trouble);
  say(message.content, true);
  toNewest(stays);
  save(chat);
}

// ---- Troubles -----------------------------------------------------------------------------------------------------

const clearTroubles = () => $('log').querySelectorAll('.trouble').forEach((node) => node.remove());

function retry() {
  clearTroubles();
  const last = current.messages.at(-1);
  if (last?.role === 'assistant') again(last);
  else if (last) answer();
}

function keyForm(then) {
  const input = el('input', { type: 'password', 'aria-label': 'API key', autocomplete: 'off', spellcheck: 'false', required: true });
  const form = el('form', {}, input, el('button', { type: 'submit', class: 'primary' }, 'Use this key'));
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    key.set(input.value.trim());
    $('input').focus();
    then();
  });
  return form;
}

function showTrouble(trouble) {
  clearTroubles();
  const node = el('div', { class: 'trouble', role: 'alert' }, el('p', {}, trouble.message));
  if (trouble.kind === 'key') node.append(keyForm(() => { meet(); panel.again(); retry(); }));
  else if (trouble.kind === 'long') node.append(button('New chat', () => showChat(newChat()), ''));
  else if (current.messages.length) {
    const act = button('Try again', retry, '');
    node.append(act);
    if (trouble.kind === 'busy') countDown(act, trouble.retryAfter);
  }
  $('log').append(node);
  toNewest(true);
  node.querySelector('input')?.focus();
}

function countDown(act, seconds) {
  act.disabled = seconds > 0;
  act.textContent = seconds > 0 ? `Try again in ${Math.ceil(seconds)} s` : 'Try again';
  if (seconds > 0) setTimeout(() => countDown(act, seconds - 1), 1000 * Math.min(1, seconds));
}

// ---- Composer -----------------------------------------------------------------------------------------------------

function fit() {
  $('input').style.height = 'auto';
  $('input').style.height = `${Math.min($('input').scrollHeight, window.innerHeight * 0.35)}px`;
}

$('composer').addEventListener('submit', (event) => {
  event.preventDefault();
  if (running) return stop();
  const text = $('input').value;
  if (!text.trim()) return;
  $('input').value = '';
  fit();
  submit(text);
});
$('input').addEventListener('input', fit);
$('input').addEventListener('keydown', (event) => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!running) $('composer').requestSubmit();
});
document.addEventListener('keydown', (event) => {
  if (event.key !== 'Escape' || $('settings').open) return;
  if (document.body.classList.contains('menu')) toggleMenu(false);
  else stop();
});
$('attach').addEventListener('click', () => $('file').click());
$('file').addEventListener('change', async () => {
  const [file] = $('file').files;
  $('file').value = '';
  if (!file) return;
  if (file.size > FILE_BYTES) return toast(`${file.name} is too large: ${bytes(file.size)} of at most ${bytes(FILE_BYTES)}.`);
  const before = $('input').value;
  $('input').value = `${before}${before ? '\n\n' : ''}${await file.text()}\n\n`;
  fit();
  $('input').focus();
});

// ---- Conversations ------------------------------------------------------------------------------------------------

function save(chat = current) {
  if (!chat.deleted && !saveChat(chat)) toast('The browser has no room left for this chat. Delete or export old ones.');
  showList();
}

function showList() {
  const items = listChats().map((chat) => {
    const title = chat.title || 'Empty';
    const open = button(title, () => { toggleMenu(false); showChat(chat); }, 'open');
    if (chat.id === current.id) open.setAttribute('aria-current', 'true');
    const act = (label, sign, what) => el('button', { type: 'button', class: 'quiet icon', 'aria-label': `${label}: ${title}`, title: label, onclick: what }, sign);
    return el('li', {}, open,
      act('Export', '↓', () => download(`${title.replace(/[^\p{L}\p{N}]+/gu, '-')}.md`, asMarkdown(chat), 'text/markdown')),
      act('Delete', '×', () => remove([chat])));
  });
  $('conversations').replaceChildren(...items);
}

function remove(chats) {
  chats.forEach(deleteChat);
  if (chats.some((chat) => chat.id === current.id)) {
    current.deleted = true;  // an answer that is still being streamed does not save it again
    showChat(newChat());
  }
  showList();
  $('new').focus();
  toast(chats.length === 1 ? 'The chat was deleted.' : `${chats.length} chats were deleted.`, () => {
    chats.forEach(saveChat);
    showList();
  });
}

const asMarkdown = (chat) => chat.messages.map((m) => `## ${m.role === 'user' ? 'You' : 'Answer'}\n\n${m.content}\n`).join('\n');

function download(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  el('a', { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

function toggleMenu(open) {
  document.body.classList.toggle('menu', open);
  $('menu').setAttribute('aria-expanded', document.body.classList.contains('menu'));
}

$('menu').addEventListener('click', () => toggleMenu());
$('new').addEventListener('click', () => { toggleMenu(false); showChat(newChat()); $('input').focus(); });
window.addEventListener('storage', (event) => isChatKey(event.key) && showList());

let toastTimer = 0;
function toast(text, undo) {
  const [words, act] = $('toast').children;
  words.textContent = text;
  act.hidden = !undo;
  act.onclick = () => { undo(); $('toast').hidden = true; };
  $('toast').hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => ($('toast').hidden = true), 8000);
}

// ---- Settings -----------------------------------------------------------------------------------------------------

function showSwitch() {
  const now = settings.kv || server.kv;
  for (const input of $('switch').querySelectorAll('input')) input.checked = input.value === now;
  $('switch').disabled = !server.switchable;
  $('switch').title = server.switchable ? '' : `This server was started with --kv ${server.kv}.`;
}

$('switch').addEventListener('change', (event) => saveSettings({ kv: event.target.value }));
$('open-settings').addEventListener('click', () => {
  const { elements } = $('settings-form');
  for (const [name, value] of Object.entries(settings)) if (elements[name]) elements[name].value = value;
  elements.key.value = key.get();
  $('settings').showModal();
});
$('close-settings').addEventListener('click', () => $('settings').close());
$('settings-form').addEventListener('submit', (event) => {
  event.preventDefault();
  const { key: newKey, ...rest } = Object.fromEntries(new FormData($('settings-form')));
  saveSettings(rest);
  if (newKey.trim() !== key.get()) {
    key.set(newKey.trim());
    meet();
    panel.again();
  }
  showSwitch();
  $('settings').close();
});
$('export').addEventListener('click', () => download('infinigen-chats.json', JSON.stringify(listChats(), null, 1), 'application/json'));
$('forget').addEventListener('click', () => { $('settings').close(); remove(listChats()); });

// ---- Start --------------------------------------------------------------------------------------------------------

// Reads the server's model and settings; retries while the server is unreachable or loading.
let waited = false;
async function meet() {
  try {
    const [props, models] = await Promise.all([getJson('props'), getJson('v1/models')]);
    const model = models.data?.[0];
    const kv = props.kv?.preset ?? 'infinigen';
    server = { model: model?.id, kv, switchable: kv === 'infinigen', context: props.n_ctx ?? model?.max_model_len ?? 8192 };
    if (!server.switchable) saveSettings({ kv: '', alpha: '', mass: '', cap: '' });
    if (waited) clearTroubles();
    waited = false;
    $('model').textContent = `${server.model ?? ''}, ${whole(server.context)} tokens of context`;
    showSwitch();
  } catch (error) {
    if (!(error instanceof Trouble)) return console.error(error);
    showTrouble(error);
    waited = error.kind === 'busy' || error.kind === 'lost';
    if (waited) setTimeout(meet, MEET_MS);
  }
}

showSwitch();
showChat(newChat());
meet();
if (matchMedia('(pointer: fine)').matches) $('input').focus();  // a phone would cover the page with its keyboard
