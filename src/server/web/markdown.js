// Converts Markdown to DOM nodes. A model's text is untrusted: HTML is never parsed, and only http, https and mailto
// addresses become links. The work is linear in the text except for bounded look-ahead, and nesting is limited.
//
//   const view = new Markdown(element);
//   view.set(text);      // call again with every new piece: only changed blocks are rebuilt

const DEEPEST = 8;       // nesting limit of lists, quotes and emphasis; deeper text stays plain
const LABEL_CHARS = 1000, ADDRESS_CHARS = 2000;

export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === 'class') node.className = value;
    else if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (typeof value === 'boolean') node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // not a secure context: use the older API
    const area = el('textarea', { class: 'hidden' });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
  }
}

export function copyButton(textOf) {
  return el('button', {
    type: 'button', class: 'quiet small', onclick: async ({ currentTarget: button }) => {
      await copyText(textOf());
      button.textContent = 'Copied';
      setTimeout(() => (button.textContent = 'Copy'), 1500);
    },
  }, 'Copy');
}

// ---- Blocks -------------------------------------------------------------------------------------------------------

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^\s`]*)/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( {1,4}|$)/;
const DIVIDER = /^[ \t|:-]+$/;

const isBlank = (line) => line.trim() === '';
const opens = (line) => FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);
const isTable = (lines, i) =>
  lines[i].includes('|') && i + 1 < lines.length && DIVIDER.test(lines[i + 1]) && /-/.test(lines[i + 1]) && lines[i + 1].includes('|');

// [{kind, from, to, …}]: the blocks and their lines.
function blocksOf(lines) {
  const blocks = [];
  for (let i = 0; i < lines.length;) {
    if (isBlank(lines[i])) { ++i; continue; }
    const from = i;
    const fence = lines[i].match(FENCE);
    if (fence) {
      const mark = fence[1];
      const closes = (line) => { const t = line.trim(); return t.startsWith(mark) && t === mark[0].repeat(t.length); };
      for (++i; i < lines.length && !closes(lines[i]);) ++i;
      blocks.push({ kind: 'code', from, to: Math.min(++i, lines.length), end: i - 1, language: fence[2] });
    } else if (HEADING.test(lines[i])) {
      blocks.push({ kind: 'heading', from, to: ++i });
    } else if (RULE.test(lines[i])) {
      blocks.push({ kind: 'rule', from, to: ++i });
    } else if (QUOTE.test(lines[i])) {
      while (i < lines.length && !isBlank(lines[i]) && (QUOTE.test(lines[i]) || !opens(lines[i]))) ++i;
      blocks.push({ kind: 'quote', from, to: i });
    } else if (ITEM.test(lines[i])) {
      i = listEnd(lines, i);
      blocks.push({ kind: 'list', from, to: i });
    } else if (isTable(lines, i)) {
      for (i += 2; i < lines.length && lines[i].includes('|') && !isBlank(lines[i]);) ++i;
      blocks.push({ kind: 'table', from, to: i });
    } else {
      for (++i; i < lines.length && !isBlank(lines[i]) && !opens(lines[i]) && !isTable(lines, i);) ++i;
      blocks.push({ kind: 'paragraph', from, to: i });
    }
  }
  return blocks;
}

const isOrdered = (item) => /\d/.test(item[2]);

// Returns the line after the list that begins at `i`: items of one kind with their indented lines and lazy continuations.
function listEnd(lines, i) {
  const [, { length: base }] = lines[i].match(ITEM);
  const ordered = isOrdered(lines[i].match(ITEM));
  let end = i;
  for (let blank = false; i < lines.length; ++i) {
    if (isBlank(lines[i])) { blank = true; continue; }
    const item = !RULE.test(lines[i]) && lines[i].match(ITEM);
    const inside = item ? item[1].length >= base + 2 : /^(?: {2}|\t)/.test(lines[i]);
    const goesOn = inside || (item ? isOrdered(item) === ordered : !blank && !opens(lines[i]));
    if (!goesOn) break;
    blank = false;
    end = i + 1;
  }
  return end;
}

function listNode(lines, depth) {
  const first = lines[0].match(ITEM);
  const list = el(isOrdered(first) ? 'ol' : 'ul');
  if (isOrdered(first) && parseInt(first[2], 10) !== 1) list.start = parseInt(first[2], 10);
  for (let i = 0; i < lines.length;) {
    const item = lines[i].match(ITEM);
    const indent = item[0].length;
    const own = [lines[i].slice(indent)];
    // An item that is not indented into this one is the next item of the list.
    for (++i; i < lines.length; ++i) {
      const next = lines[i].match(ITEM);
      if (next && next[1].length < first[1].length + 2) break;
      own.push(lines[i].replace(/^\t/, '    ').replace(new RegExp(`^ {1,${indent}}`), ''));
    }
    const node = el('li');
    addBlocks(node, own, depth + 1, true);
    list.append(node);
  }
  return list;
}

function tableNode(lines) {
  const cells = (line) => line.trim().replace(/^\|/, '').replace(/\|$/, '').split('|').map((cell) => cell.trim());
  const aligns = cells(lines[1]).map((cell) => (/^:.*:$/.test(cell) ? 'center' : cell.endsWith(':') ? 'right' : ''));
  const row = (line, tag) => {
    const node = el('tr');
    cells(line).slice(0, aligns.length).forEach((cell, i) => {
      const td = el(tag, aligns[i] ? { class: aligns[i] } : {});
      addInline(td, cell, 1);
      node.append(td);
    });
    return node;
  };
  const body = el('tbody');
  for (const line of lines.slice(2)) body.append(row(line, 'td'));
  return el('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Table' },
    el('table', {}, el('thead', {}, row(lines[0], 'th')), body));
}

function blockNode(block, lines, depth, tight) {
  const own = lines.slice(block.from, block.to);
  switch (block.kind) {
    case 'code': {
      const text = lines.slice(block.from + 1, block.end).join('\n');
      return el('figure', { class: 'code' },
        el('figcaption', {}, el('span', {}, block.language || 'text'), copyButton(() => text)),
        el('pre', { tabindex: '0' }, el('code', {}, text)));
    }
    case 'heading': {
      const [, marks, title = ''] = own[0].match(HEADING);
      const node = el(`h${Math.min(6, marks.length + 2)}`);  // the page itself uses h1 and h2
      addInline(node, title.trimEnd().replace(/(?:^|[ \t])#+$/, ''), depth);
      return node;
    }
    case 'rule': return el('hr');
    case 'quote': {
      const node = el('blockquote');
      addBlocks(node, own.map((line) => line.replace(QUOTE, '')), depth + 1);
      return node;
    }
    case 'list': return listNode(own, depth);
    case 'table': return tableNode(own);
    default: {
      const node = el(tight ? 'span' : 'p');
      addInline(node, own.map((line) => line.trim()).join('\n'), depth);
      return node;
    }
  }
}

function addBlocks(parent, lines, depth, tight = false) {
  if (depth > DEEPEST) return void parent.append(lines.join('\n'));
  for (const block of blocksOf(lines)) parent.append(blockNode(block, lines, depth, tight));
}

// ---- Inline -------------------------------------------------------------------------------------------------------

// The address if links to it are allowed, otherwise null.
function safeAddress(text) {
  try {
    const url = new URL(text);
    return ['http:', 'https:', 'mailto:'].includes(url.protocol) ? url.href : null;
  } catch {
    return null;  // relative or invalid
  }
}

const link = (href) => el('a', { href, target: '_blank', rel: 'noopener noreferrer nofollow', title: href });

// "[label](address)" at `i`: {label, address, end}, or null.
function linkAt(text, i) {
  let level = 0;
  for (let j = i; j < Math.min(text.length, i + LABEL_CHARS); ++j) {
    if (text[j] === '\\') { ++j; continue; }
    if (text[j] === '[') ++level;
    if (text[j] !== ']' || --level > 0) continue;
    if (text[j + 1] !== '(') return null;
    const end = text.slice(j + 2, j + 2 + ADDRESS_CHARS).indexOf(')');
    if (end < 0) return null;
    const address = text.slice(j + 2, j + 2 + end).trim().split(/\s/)[0];
    return { label: text.slice(i + 1, j), address, end: j + 3 + end };
  }
  return null;
}

const EMPHASIS = [['**', 'strong'], ['__', 'strong'], ['~~', 'del'], ['*', 'em'], ['_', 'em']];
const isSpace = (c) => c === ' ' || c === '\n' || c === '\t';
const isWord = (c) => c !== undefined && /[\p{L}\p{N}]/u.test(c);

// The position at which the emphasis opened by `mark` at `i` closes, or -1. `barren` records up to where no mark closes
// anything, so that the text is searched only once.
function closing(text, i, mark, barren) {
  const from = i + mark.length;
  if (from >= text.length || isSpace(text[from])) return -1;
  if (mark[0] === '_' && isWord(text[i - 1])) return -1;  // snake_case
  let j = text.indexOf(mark, Math.max(from + 1, barren.get(mark) ?? 0));
  for (; j >= 0; j = text.indexOf(mark, j + mark.length)) {
    const longer = mark.length === 1 && (text[j + 1] === mark || text[j - 1] === mark);
    if (!longer && !isSpace(text[j - 1]) && !(mark[0] === '_' && isWord(text[j + mark.length]))) return j;
    barren.set(mark, j + mark.length);
  }
  barren.set(mark, text.length);
  return -1;
}

function addInline(parent, text, depth) {
  let plain = '';
  const flush = () => { if (plain) parent.append(plain); plain = ''; };
  const add = (node) => { flush(); parent.append(node); };
  const barren = new Map();  // mark -> position up to which it closes nothing
  for (let i = 0; i < text.length;) {
    const c = text[i];
    if (c === '\n') { add(el('br')); ++i; continue; }
    if (c === '\\' && /[!-/:-@[-`{-~]/.test(text[i + 1] || '')) { plain += text[i + 1]; i += 2; continue; }
    if (c === '`') {
      let ticks = 1;
      while (text[i + ticks] === '`') ++ticks;
      const mark = '`'.repeat(ticks);
      let end = barren.has(mark) ? -1 : text.indexOf(mark, i + ticks);
      while (end >= 0 && text[end + ticks] === '`') {  // a longer run of backticks does not close it
        while (text[end] === '`') ++end;
        end = text.indexOf(mark, end);
      }
      if (end < 0) { barren.set(mark, text.length); plain += mark; i += ticks; continue; }
      add(el('code', {}, text.slice(i + ticks, end).replace(/^ (.+) $/, '$1')));
      i = end + ticks;
      continue;
    }
    const found = c === '[' ? linkAt(text, i) : c === '!' && text[i + 1] === '[' ? linkAt(text, i + 1) : null;
    if (found) {
      const href = safeAddress(found.address);
      const node = href ? link(href) : el('span');
      if (depth < DEEPEST) addInline(node, found.label, depth + 1);
      else node.append(found.label);
      add(node);
      i = found.end;
      continue;
    }
    const bare = c === 'h' && !isWord(text[i - 1]) && text.slice(i, i + ADDRESS_CHARS).match(/^https?:\/\/[^\s<>"`]+/);
    if (bare) {
      const address = bare[0].replace(/[.,;:!?)\]'*_]+$/, '');
      const href = safeAddress(address);
      if (href) { const node = link(href); node.append(address); add(node); i += address.length; continue; }
    }
    const emphasis = depth < DEEPEST && EMPHASIS.find(([mark]) => text.startsWith(mark, i));
    if (emphasis) {
      const [mark, tag] = emphasis;
      const end = closing(text, i, mark, barren);
      if (end > 0) {
        const node = el(tag);
        addInline(node, text.slice(i + mark.length, end), depth + 1);
        add(node);
        i = end + mark.length;
        continue;
      }
      plain += mark;
      i += mark.length;
      continue;
    }
    plain += c;
    ++i;
  }
  flush();
}

export class Markdown {
  #parent;
  #shown = [];  // [{source, node}], one for each child of the parent

  constructor(parent) { this.#parent = parent; }

  set(text) {
    const lines = text.replace(/\r\n?/g, '\n').split('\n');
    const blocks = blocksOf(lines);
    blocks.forEach((block, i) => {
      const source = `${block.kind}\n${lines.slice(block.from, block.to).join('\n')}`;
      if (this.#shown[i]?.source === source) return;
      const node = blockNode(block, lines, 0, false);
      if (this.#shown[i]) this.#shown[i].node.replaceWith(node);
      else this.#parent.append(node);
      this.#shown[i] = { source, node };
    });
    for (const { node } of this.#shown.splice(blocks.length)) node.remove();
  }
}
