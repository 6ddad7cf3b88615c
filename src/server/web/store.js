// Data saved in the browser: settings, and conversations, each under its own key so that two tabs do not overwrite each
// other. The API key is not saved here: it ends with the tab (api.js).
//
// A conversation: {id, title, changed, messages: [{role, content, …}]}

const CHAT = 'infinigen.chat.', SETTINGS = 'infinigen.settings';

const read = (name) => {
  try {
    return JSON.parse(localStorage.getItem(name));
  } catch {
    return null;
  }
};

export function listChats() {
  const chats = [];
  for (let i = 0; i < localStorage.length; ++i) {
    const name = localStorage.key(i);
    const chat = name.startsWith(CHAT) ? read(name) : null;
    if (chat && Array.isArray(chat.messages)) chats.push(chat);
  }
  return chats.sort((a, b) => b.changed - a.changed);
}

export const newChat = () => ({ id: `${Date.now().toString(36)}${Math.random().toString(36).slice(2, 8)}`, title: '', changed: Date.now(), messages: [] });

// Returns false if the browser has no space left.
export function saveChat(chat) {
  chat.changed = Date.now();
  chat.title ||= (chat.messages.find((m) => m.role === 'user')?.title ?? chat.messages[0]?.content ?? '').slice(0, 60);
  try {
    localStorage.setItem(CHAT + chat.id, JSON.stringify(chat));
    return true;
  } catch {
    return false;
  }
}

export const deleteChat = (chat) => localStorage.removeItem(CHAT + chat.id);

// For listeners of 'storage': whether another tab changed a conversation.
export const isChatKey = (name) => name === null || name.startsWith(CHAT);

export const settings = { system: '', temperature: '', top_p: '', max_tokens: '', seed: '', kv: '', alpha: '', mass: '', cap: '', ...read(SETTINGS) };

export function saveSettings(changes) {
  Object.assign(settings, changes);
  try {
    localStorage.setItem(SETTINGS, JSON.stringify(settings));
  } catch { /* not saved: they are valid until the page is closed */ }
}

// The request fields for the settings; empty settings are omitted, so that the server's defaults apply.
export function requestFields() {
  const fields = {};
  for (const name of ['temperature', 'top_p', 'max_tokens', 'seed'])
    if (settings[name] !== '' && Number.isFinite(Number(settings[name]))) fields[name] = Number(settings[name]);
  const kv = {};
  if (settings.kv) kv.preset = settings.kv;
  if (settings.kv !== 'full') {
    // The server accepts only one of the two.
    if (settings.mass !== '') kv.mass = Number(settings.mass) / 100;
    else if (settings.alpha !== '') kv.alpha = Number(settings.alpha);
    if (settings.cap !== '') kv.cap = Number(settings.cap) / 100;
  }
  if (Object.keys(kv).length) fields.kv = kv;
  return fields;
}
