#!/usr/bin/env python3
"""The web page in headless Chromium: what a reader does with it, and what an answer must not be able to do.

usage: web_test.py [--server BINARY] [--screenshot FILE.png] [--only NAME]

Without --server the page talks with fake_server.py, which can be told to fail in every way. With it, `BINARY serve` and
the model that comes with it answer; what only a fake can do is left out and counted as skipped. Exit status 77: there is
no Chromium here, or no /dev/shm, without which Chromium loses pages on a busy machine.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import fake_server  # noqa: E402
from devtools import Browser, find_chromium  # noqa: E402

KEY = "sk-canary-0123456789"

# How much of the picture is lit, 0…1. In the dark: what is not read has little red.
LIT = """(() => { const c = document.getElementById('picture'), copy = new OffscreenCanvas(c.width - 4, c.height).getContext('2d', {willReadFrequently: true});
  copy.drawImage(c, 0, 0);
  const d = copy.getImageData(0, 0, c.width - 4, c.height).data;
  let lit = 0, all = 0;
  for (let i = 0; i < d.length; i += 4) if (d[i + 3]) { ++all; lit += d[i] > 90; }
  return lit / all; })()"""
TEXT = "(document.querySelector('.answer:last-of-type .text')?.textContent ?? '')"
USAGE = "document.querySelectorAll('.answer .usage').length"
ANSWERED = "!document.querySelector('#send.stop') && document.querySelector('.answer .usage')"

# Text whose contrast is below WCAG AA: [["text", ratio], …]
CONTRAST = """(() => {
  const part = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const colour = (text) => text.match(/[\\d.]+/g).map(Number);
  const ground = (e) => { for (; e; e = e.parentElement) { const c = colour(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] === 1) return c; } return [255, 255, 255]; };
  const bad = [];
  const judge = (e, style, text) => {
    const pair = [light(colour(style.color)), light(ground(e))].sort((a, b) => b - a);
    const ratio = (pair[0] + 0.05) / (pair[1] + 0.05), size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) bad.push([text.trim().slice(0, 40), ratio]);
  };
  for (const e of document.querySelectorAll('body *')) {
    if (!e.checkVisibility() || e.matches(':disabled, :disabled *, noscript, .hidden, .skip')) continue;
    const own = [...e.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data).join('');
    if (own.trim()) judge(e, getComputedStyle(e), own);
    if (e.placeholder) judge(e, getComputedStyle(e, '::placeholder'), e.placeholder);
  }
  return bad; })()"""


class RealServer:
    """`BINARY serve` on a free port, ready for requests; SIGTERM at the end."""

    def __init__(self, binary, key=""):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/"
        command = [binary, "serve", "--host", "127.0.0.1", "--port", str(port)]
        if key:
            command += ["--api-key", key]
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)

    def __enter__(self):
        for _ in range(600):
            if self.process.poll() is not None:
                self.log.seek(0)
                raise AssertionError(f"the server ended: {self.log.read().decode(errors='replace')[-2000:]}")
            with contextlib.suppress(urllib.error.URLError, OSError):
                if urllib.request.urlopen(self.url + "health", timeout=2).status == 200:
                    return self
            time.sleep(0.1)
        raise AssertionError("the server was not ready within a minute")

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError("the server did not end on SIGTERM") from None


class Case:
    """What a check is given: a browser, a server, pages that are looked through at the end."""

    def __init__(self, browser, server, start, fake, screenshot):
        self.browser, self.server, self.start, self.fake, self.screenshot = browser, server, start, fake, screenshot
        self.opened = []
        self.expected = []  # parts of console messages that belong to the check

    def open(self, url=None, tokens=48, **view):
        # A real model may go on until its context is full.
        limit = "" if self.fake else f"localStorage['infinigen.settings'] ??= '{{\"max_tokens\": \"{tokens}\"}}'"
        page = self.browser.open(url or self.server.url, before=limit, **view)
        self.opened.append(page)
        page.wait("document.getElementById('log')?.children.length")
        return page

    def finish(self):
        for page in self.opened:
            origin = page.js("location.origin")
            problems = [p for p in page.problems if not any(e in p for e in self.expected)]
            assert not problems, f"the console says: {problems}"
            foreign = [r for r in page.requests if not r.startswith((origin + "/", "data:", "blob:" + origin))]
            assert not foreign, f"asked elsewhere: {foreign}"

    def close(self):
        for page in self.opened:
            page.close()


def send(page, text):
    page.js("document.getElementById('input').focus()")
    page.type(text)
    page.key("Enter")


def ask(page, text, timeout=60):
    """Sends, waits for the whole answer, returns it."""
    count = page.js(USAGE)
    send(page, text)
    page.wait(f"{USAGE} > {count}", timeout)
    return page.js(TEXT)


def choose(page, kv):
    page.click(f"#switch input[value={kv}]")
    assert page.js(f"document.querySelector('#switch input[value={kv}]').checked")


FAKE_ONLY = set()


def fake_only(check):
    FAKE_ONLY.add(check.__name__)
    return check


# ---- Checks: each takes a Case ------------------------------------------------------------------------------------


def policy(case):
    """Every file of the page comes under the strict policy."""
    for path in ("", "app.js", "style.css"):
        with urllib.request.urlopen(case.server.url + path) as reply:
            rules = sorted(rule.strip() for rule in (reply.headers["Content-Security-Policy"] or "").split(";"))
            assert rules == sorted(fake_server.CSP.split("; ")), (path, rules)


def streams(case):
    """An answer grows piece by piece, and says what it took."""
    page = case.open()
    page.js("window.sizes = []; new MutationObserver(() => sizes.push(" + TEXT + ".length)).observe("
            "document.getElementById('log'), {subtree: true, childList: true, characterData: true})")
    text = ask(page, "Tell me a story about a fox.")
    assert len(text) > 20, text
    assert len(set(page.js("sizes"))) >= 4, "it came in one piece"
    usage = page.js("document.querySelector('.usage').innerText")
    for part in ("tokens", "first token after", "prompt", "of the cache"):
        assert part in usage, usage
    assert page.js("document.getElementById('say-answer').textContent"), "nothing was said to a screen reader"
    if case.fake:
        assert text == fake_server.STORY.strip(), text


def stops(case):
    """Esc stops; so does the button; what came stays, and the next question works."""
    page = case.open(tokens=2000)
    for attempt in range(6):  # a fast server may be done before the key is pressed
        count = page.js(USAGE)
        send(page, "!slow" if case.fake else "Tell me a very long story about a fox, a bear and a river.")
        page.wait(TEXT + ".length > 3")
        if attempt % 2 == 0:
            page.key("Escape")
        else:
            page.click("#send")
        page.wait(f"{USAGE} > {count}", 20)
        stopped = "stopped" in page.js("[...document.querySelectorAll('.usage')].at(-1).innerText")
        assert stopped or not case.fake, f"attempt {attempt}"
        if stopped and attempt > 0:
            break
    else:
        raise AssertionError("no answer was stopped")
    size = page.js(TEXT + ".length")
    time.sleep(0.15)
    assert page.js(TEXT + ".length") == size, "it went on"
    assert page.js("document.getElementById('send').textContent") == "Send"
    assert len(ask(page, "And the bear?")) > 5
    if case.fake:
        assert case.server.state.cancelled >= 2, "the server did not see the client go"


def picture(case):
    """A long text: little of the picture is lit, and it changes; with `full` all of it is."""
    page = case.open(tokens=400, height=800)
    page.wait("document.querySelector('.chip.first')")
    assert page.js(LIT) == 0
    page.click(".chip.first")
    page.wait(f"{LIT} > 0.01", 90)
    hashes = "(() => { const c = document.getElementById('picture'); return c.toDataURL(); })()"
    first = page.js(hashes)
    page.wait(f"{hashes} !== {json.dumps(first)}")
    page.wait(ANSWERED, 60)
    sentence = page.js("document.getElementById('sentence').textContent")
    assert "reads only the lit" in sentence and "%" in sentence, sentence
    lit = page.js(LIT)
    assert 0.01 < lit < 0.7, lit
    label = page.js("document.getElementById('picture').getAttribute('aria-label')")
    assert "layers" in label and "%" in label, label
    assert page.js("document.getElementById('say-picture').textContent"), "no summary for a screen reader"
    assert not page.js("document.getElementById('mark').hidden")
    pool = page.js("document.getElementById('n-pool').textContent")
    assert " of " in pool and (" cached from earlier texts" in pool or not case.fake), pool
    if case.screenshot:
        send(page, "Tell me a story about a fox.")
        page.wait("document.querySelectorAll('.answer').length === 2 && " + TEXT + ".length > 60", 60)
        time.sleep(0.45)  # the numbers follow the picture twice a second
        page.screenshot(case.screenshot)
        page.wait(f"{USAGE} === 2", 60)
    missed = "document.getElementById('missed')"
    page.wait(f"!{missed}.hidden && {missed}.innerText.includes('{'3.4' if case.fake else '%'}')")
    assert "of the attention went to the rest" in page.js("document.getElementById('picture').getAttribute('aria-label')")
    choose(page, "full")
    page.click(".answer:last-of-type .foot button:last-of-type")  # Again
    page.wait(f"{LIT} > 0.97", 90)
    page.wait("document.getElementById('sentence').textContent.includes('whole cache')")
    page.wait(f"{missed}.hidden")
    page.wait(ANSWERED, 60)
    if case.fake:
        assert case.server.state.requests[-1]["kv"] == {"preset": "full"}


def short_text(case):
    """Of a short text everything is read, and the page says so when the answer has come to its end."""
    page = case.open(tokens=40)
    for kv, says in (("infinigen", "short text is read whole"), ("full", "whole cache")):
        choose(page, kv)
        ask(page, "Tell me a story about a fox.")
        if case.fake:
            continue  # its picture is made up
        page.wait(f"document.getElementById('sentence').textContent.includes({json.dumps(says)}) && {LIT} > 0.97", 5)
        time.sleep(0.3)  # and nothing comes after that
        assert page.js(f"document.getElementById('sentence').textContent.includes({json.dumps(says)}) && {LIT} > 0.97"), says


def harmless(case):
    """Nothing that a model says runs, loads or leads to code."""
    page = case.open()
    if case.fake:
        ask(page, "!hostile")
    else:
        chat = {"id": "x", "title": "x", "changed": 1, "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": fake_server.HOSTILE}]}
        page.js(f"localStorage.setItem('infinigen.chat.x', {json.dumps(json.dumps(chat))})")
        page.go(case.server.url)
        page.wait("document.querySelector('#conversations .open')")
        page.click("#conversations .open")
    page.wait(TEXT + ".includes('window.hacked')")
    for i in range(page.js("document.querySelectorAll('.answer span, .answer a:not([target])').length")):
        page.js(f"document.querySelectorAll('.answer span, .answer a:not([target])')[{i}].click()")
    assert page.js("window.hacked") is None
    assert page.js("document.querySelectorAll('.answer :is(script, img, svg, iframe, style, object, embed)').length") == 0
    assert page.js("[...document.querySelectorAll('.answer a')].map(a => a.href)") == ["https://example.org/ok"]
    assert page.js("[...document.querySelectorAll('.answer *')].every(e => e.getAttributeNames().every(n => !n.startsWith('on')))")
    assert "<script>window.hacked = 1</script>" in page.js(TEXT), "what was said is shown as text"


def bounded(case):
    """Markdown of any shape takes little time."""
    page = case.open()
    shapes = ["'*a '.repeat(30000)", "'['.repeat(60000)", "'`a``'.repeat(20000)", "'> '.repeat(20000)", "'| a '.repeat(20000) + '\\n|-|\\n'",
              "'- a\\n  '.repeat(8000)", "'**a*'.repeat(20000)", "'[a]('.repeat(20000)", "'# '.repeat(30000)", "'- '.repeat(20000)",
              "'1. a\\n\\n'.repeat(5000)", "'http://'.repeat(10000)", "' '.repeat(60000) + 'x'", "'* '.repeat(30000) + 'x'"]
    for shape in shapes:
        took = page.js("(async () => { const {Markdown} = await import('./markdown.js'); const began = performance.now();"
                       f"new Markdown(document.createElement('div')).set({shape}); return performance.now() - began; }})()")
        assert took < 1500, f"{shape}: {took:.0f} ms"


@fake_only
def odd_stream(case):
    """A stream may be cut anywhere, end its lines otherwise, and contain fields that are ignored."""
    assert ask(case.open(), "!odd") == fake_server.ODD


@fake_only
def markdown(case):
    page = case.open()
    ask(page, "!markdown")
    count = lambda selector: page.js(f"document.querySelectorAll({json.dumps('.answer .text ' + selector)}).length")
    for selector in ("strong", "em", "del", "p > code", "h3", "ol > li ul > li + li", "blockquote br", "thead th.right", "a[href='https://example.org/a']"):
        assert count(selector) >= 1, selector
    assert count("ol > li") == 3 and count("em") == 1
    assert page.js("document.querySelector('.answer pre code').textContent") == "def square(x):\n    return x * x  # <b>not bold</b>"
    assert "snake_case_word and a_b_ stay, 2 * 3 * 4 too." in page.js(TEXT)
    page.click(".answer figure.code button")
    page.wait("document.querySelector('.answer figure.code button').textContent === 'Copied'")


def key_wanted(case):
    """401: the page asks for the key, keeps it for the tab only, and goes on with the question."""
    case.expected.append("status of 401")
    with case.start(KEY) as server:
        if not case.fake:
            return key_at_the_door(case, server)
        page = case.open(server.url)
        page.wait("document.querySelector('.trouble input[type=password]')")
        page.js("document.querySelector('.trouble input').focus()")
        page.type("sk-wrong")
        page.key("Enter")
        page.wait("document.querySelector('.trouble p')?.textContent.includes('does not accept')")
        send(page, "Hello")
        page.wait("document.querySelectorAll('.user').length === 1 && document.activeElement.matches('.trouble input')")
        page.type(KEY)
        page.key("Enter")
        page.wait(ANSWERED, 60)
        assert page.js("document.querySelectorAll('.user').length") == 1
        assert page.js("document.querySelector('.trouble')") is None
        assert page.js("Object.values(sessionStorage).join()") == KEY
        assert KEY not in page.js("JSON.stringify(localStorage)")
        page.wait("document.getElementById('n-lit').textContent !== '–' || !document.querySelector('#send.stop')")
        page.close()
        case.opened.remove(page)


def key_at_the_door(case, server):
    """The real server gives not even the page without a key: the browser asks for it and sends it from then on."""
    try:
        urllib.request.urlopen(server.url)
        raise AssertionError("the page came without a key")
    except urllib.error.HTTPError as error:
        assert error.code == 401 and error.headers["WWW-Authenticate"].startswith("Basic"), error.headers
    page = case.open(server.url.replace("//", f"//reader:{KEY}@"))
    assert len(ask(page, "Hello")) > 0
    page.wait("document.getElementById('n-lit').textContent !== '–'")
    assert page.js("document.querySelector('.trouble')") is None
    assert KEY not in page.js("JSON.stringify(localStorage) + JSON.stringify(sessionStorage)")
    page.close()
    case.opened.remove(page)


@fake_only
def troubles(case):
    """Errors are sentences, with what can be done about them."""
    case.expected += ["status of 429", "status of 400"]
    page = case.open()
    trouble = "document.querySelector('.trouble')?.innerText ?? ''"
    send(page, "!busy")
    page.wait(f"({trouble}).includes('is busy') && ({trouble}).includes('in 2 s')")
    assert page.js("document.querySelector('.trouble button').disabled")
    page.wait("!document.querySelector('.trouble button').disabled", 4)
    before = len(case.server.state.requests)
    page.click(".trouble button")
    page.wait(f"({trouble}).includes('Try again in')")
    assert len(case.server.state.requests) == before + 1
    page.click("#new")
    send(page, "!long")
    page.wait(f"({trouble}).includes('9,001') && ({trouble}).includes('8,192')")
    page.click(".trouble button")
    send(page, "!broken")
    page.wait(f"({trouble}).includes('broke off')")
    assert page.js(TEXT).startswith("A little fox"), "what came stays"


@fake_only
def settings(case):
    """What is set is asked for, and still set after a reload."""
    page = case.open()
    page.wait("document.getElementById('model').textContent")
    ask(page, "Hello")
    plain = case.server.state.requests[-1]
    assert set(plain) == {"messages", "stream", "stream_options", "model"}, plain
    page.click("#open-settings")
    values = {"system": "Be brief.", "temperature": "0", "top_p": "0.9", "max_tokens": "5", "seed": "7", "kv": "infinigen", "alpha": "3.5", "cap": "12.5"}
    for name, value in values.items():
        page.js(f"document.getElementById('settings-form').elements.{name}.value = {json.dumps(value)}")
    page.click("#settings-form button[type=submit]")
    page.go(case.server.url)
    page.wait("document.getElementById('model').textContent")
    text = ask(page, "Hello")
    body = case.server.state.requests[-1]
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}], body
    assert (body["temperature"], body["top_p"], body["max_tokens"], body["seed"]) == (0, 0.9, 5, 7), body
    assert body["kv"] == {"preset": "infinigen", "alpha": 3.5, "cap": 0.125}, body
    assert len(text) == 20 and "cut off" in page.js("document.querySelector('.usage').innerText")
    page.click("#open-settings")
    page.wait("document.getElementById('settings').open")
    page.js("document.getElementById('settings-form').elements.mass.value = '95'")
    page.click("#settings-form button[type=submit]")
    page.wait("!document.getElementById('settings').open")
    ask(page, "Hello")
    assert case.server.state.requests[-1]["kv"] == {"preset": "infinigen", "mass": 0.95, "cap": 0.125}, "mass replaces alpha"


def history(case):
    """Chats outlive a reload, can be opened, exported, deleted and brought back."""
    page = case.open()
    answers = [ask(page, "First question?")]
    page.click("#new")
    answers.append(ask(page, "Second question?"))
    page.go(case.server.url)
    page.wait("document.querySelectorAll('#conversations li').length === 2")
    page.click("#conversations li:nth-child(2) .open")
    page.wait("document.querySelector('.user')?.textContent.includes('First question?')")
    assert page.js(TEXT) == answers[0]
    with tempfile.TemporaryDirectory() as folder:
        page.call("Page.setDownloadBehavior", behavior="allow", downloadPath=folder)
        page.click("#conversations li:nth-child(1) .icon")
        end = time.monotonic() + 20
        while time.monotonic() < end:  # a download has its name before it has its text
            texts = [f.read_text() for f in pathlib.Path(folder).glob("*.md")]
            if any("## You" in text and "question?" in text for text in texts):
                break
            time.sleep(0.05)
        else:
            raise AssertionError(f"no file with the chat came: {texts}")
    page.click("#conversations li:nth-child(1) .icon:last-child")
    page.wait("document.querySelectorAll('#conversations li').length === 1")
    page.click("#toast button")
    page.wait("document.querySelectorAll('#conversations li').length === 2")


def keyboard(case):
    """All of it without a mouse, and the focus can always be seen."""
    page = case.open()
    page.js("(() => { const b = document.createElement('button'); document.body.prepend(b); b.focus(); b.remove(); })()")  # to the top
    page.wait("document.activeElement === document.body")
    page.key("Tab")
    page.wait("document.activeElement.className === 'skip'")
    page.wait("document.activeElement.getBoundingClientRect().top >= 0")
    page.key("Enter")
    page.wait("document.activeElement.id === 'input'")
    page.type("line one")
    page.key("Enter", shift=True)
    page.type("line two")
    page.key("Enter")
    page.wait(ANSWERED, 60)
    assert page.js("document.querySelector('.user .text').textContent") == "line one\nline two"
    seen, invisible = [], []
    for _ in range(80):
        page.key("Tab")
        what, shown = page.js("(() => { const e = document.activeElement, s = (n) => getComputedStyle(n); return [e === document.body ? 'body' : e.id || e.name || e.textContent.slice(0, 20),"
                              "[e, e.nextElementSibling, e.parentElement].some((n) => n && s(n).outlineStyle !== 'none' && parseFloat(s(n).outlineWidth) >= 2)]; })()")
        if seen and what == seen[0]:  # once around; an answer may have several buttons of one name
            break
        seen.append(what)
        if not shown and what != "body":
            invisible.append(what)
    for wanted in ("open-settings", "new", "kv", "input", "send", "attach"):
        assert wanted in seen, (wanted, seen)
    assert not invisible, f"no visible focus: {invisible}"
    page.js("document.getElementById('open-settings').focus()")
    page.key("Enter")
    page.wait("document.getElementById('settings').open")
    page.key("Escape")
    page.wait("!document.getElementById('settings').open && document.activeElement.id === 'open-settings'")
    page.js("document.querySelector('#switch input:checked').focus()")
    page.key("ArrowRight")
    page.wait("document.querySelector('#switch input:checked').value === 'full'")


def readable(case):
    """Contrast in dark and light, names for a screen reader, motion only where it is welcome."""
    page = case.open(still=True)
    ask(page, "!markdown" if case.fake else "Hello")
    for dark in (True, False):
        page.view(1280, 860, dark=dark, still=True)
        assert not page.js(CONTRAST), (dark, page.js(CONTRAST))
        page.click("#open-settings")
        page.wait("document.getElementById('settings').open")
        assert not page.js(CONTRAST), ("settings", dark, page.js(CONTRAST))
        page.key("Escape")
        page.wait("!document.getElementById('settings').open")
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "textbox", "radio", "link", "meter", "image", "navigation", "spinbutton", "combobox"}
    nameless = [n for n in nodes if not n.get("ignored") and n.get("role", {}).get("value") in roles and not n.get("name", {}).get("value")]
    assert not nameless, nameless
    assert {"main", "navigation", "image", "meter"} <= {n.get("role", {}).get("value") for n in nodes}
    send(page, "Hello again")
    page.wait("document.querySelector('#send.stop')")
    page.wait("document.getAnimations().length === 0")
    page.wait(ANSWERED, 60)


def phone(case):
    """A narrow screen: nothing sticks out, the picture is above the chat and folds, targets can be hit."""
    page = case.open(width=360, height=740, phone=True)
    for show in ("", "document.getElementById('menu').click()"):
        page.js(show)
        assert page.js("document.documentElement.scrollWidth <= innerWidth"), "wider than the screen"
        small = page.js("[...document.querySelectorAll('button, summary')].filter(e => e.checkVisibility()).map(e => [e.textContent, e.getBoundingClientRect()])"
                        ".filter(([, r]) => r.width < 24 || r.height < 24).map(([t]) => t)")
        assert not small, small
    assert page.js("document.getElementById('side').checkVisibility()")
    page.key("Escape")
    page.wait("!document.getElementById('side').checkVisibility()")
    top = lambda what: page.js(f"document.querySelector('{what}').getBoundingClientRect().top")
    assert top("#picture") < top("#log") < top("#composer")
    ask(page, "!markdown" if case.fake else "Hello")
    wide = page.js("[...document.querySelectorAll('body *')].filter(e => e.checkVisibility() && !e.closest('pre, .scroll, .hidden, .skip')"
                   " && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 60))")
    assert not wide, f"wider than the screen: {wide}"
    room = page.js("document.getElementById('log').clientHeight")
    page.click("#panel summary")
    page.wait("!document.getElementById('picture').checkVisibility()")
    page.wait(f"document.getElementById('log').clientHeight > {room} + 100")
    if case.fake:  # the page is hidden, so the stream is closed
        end = time.monotonic() + 5
        while case.server.state.lookers and time.monotonic() < end:
            time.sleep(0.05)
        assert case.server.state.lookers == 0


CHECKS = [policy, streams, stops, picture, short_text, harmless, bounded, odd_stream, markdown, key_wanted, troubles, settings, history, keyboard, readable, phone]


def main():
    parser = argparse.ArgumentParser(description="the web page in headless Chromium")
    parser.add_argument("--server", metavar="BINARY", help="infinigen; without it a fake answers")
    parser.add_argument("--screenshot", metavar="FILE.png")
    parser.add_argument("--only", metavar="NAME", help="one check")
    options = parser.parse_args()
    if not find_chromium():
        print("there is no Chromium here (Debian: apt-get install chromium)")
        return 77
    if not os.access("/dev/shm", os.W_OK):
        print("there is no writable /dev/shm here, which Chromium needs")
        return 77
    fake = options.server is None
    start = (lambda key="": fake_server.FakeServer(key=key, pace=0.004)) if fake else (lambda key="": RealServer(options.server, key))
    passed, failed, skipped = 0, [], 0
    with start() as server, Browser() as browser:
        for check in CHECKS:
            if options.only not in (None, check.__name__):
                continue
            if not fake and check.__name__ in FAKE_ONLY:
                skipped += 1
                print(f"skipped  {check.__name__}: only a fake server can be told to")
                continue
            case = Case(browser, server, start, fake, options.screenshot)
            began = time.monotonic()
            try:
                check(case)
                case.finish()
                passed += 1
                print(f"ok       {check.__name__} ({time.monotonic() - began:.1f} s)")
            except (AssertionError, RuntimeError, TimeoutError, OSError) as error:
                failed.append(check.__name__)
                print(f"FAILED   {check.__name__}: {error}")
                traceback.print_exc(file=sys.stdout)
                if case.opened:
                    shot = os.path.join(tempfile.gettempdir(), f"web_test_{check.__name__}.png")
                    with contextlib.suppress(RuntimeError, TimeoutError, OSError):
                        case.opened[-1].screenshot(shot)
                        print(f"         seen: {shot}")
            finally:
                with contextlib.suppress(RuntimeError, TimeoutError, OSError):
                    case.close()
    print(f"{passed} passed, {len(failed)} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
