#include "cli/line_source.h"

#include <histedit.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cwchar>
#include <string_view>

#include "cli/console.h"

namespace infinigen {
namespace {

// Far more than any context holds; bounds the memory of an endless line.
constexpr size_t kMaxLineBytes = size_t{64} << 20;

// ---- a pipe or a file ----

class PipeLines final : public LineSource {
 public:
  Result<LineEvent> Read(const std::string&, std::string* line) override {
    while (true) {
      const size_t end = held_.find('\n', searched_);
      if (end != std::string::npos || (ended_ && !held_.empty())) {
        *line = held_.substr(0, end);
        held_.erase(0, end == std::string::npos ? end : end + 1);
        searched_ = 0;
        if (!line->empty() && line->back() == '\r') line->pop_back();
        return LineEvent::kLine;
      }
      if (ended_) return LineEvent::kEnd;
      searched_ = held_.size();
      if (held_.size() > kMaxLineBytes) return Invalid("standard input: a line of more than {} bytes", kMaxLineBytes);
      char buffer[65536];
      const ssize_t count = ::read(STDIN_FILENO, buffer, sizeof(buffer));
      if (count > 0)
        held_.append(buffer, static_cast<size_t>(count));
      else if (count == 0)
        ended_ = true;
      else if (errno != EINTR)
        return IoError("standard input: read failed: {}", std::strerror(errno));
      else if (Interrupted())
        return LineEvent::kEnd;
    }
  }
  void Remember(const std::string&) override {}
  bool terminal() const override { return false; }

 private:
  std::string held_;
  size_t searched_ = 0;  // bytes of held_ without a line end
  bool ended_ = false;
};

// ---- a terminal ----

volatile std::sig_atomic_t resized = 0;

// Keys bound to this file's functions; libedit has no other use for them.
constexpr wchar_t kCancelKey = 0x03;  // Ctrl-C, from the terminal or from the signal
constexpr wchar_t kPasteKey = 0x1F;

constexpr std::string_view kPasteBegin = "\x1b[200~", kPasteEnd = "\x1b[201~";
constexpr int kEscapeWaitMs = 50;  // an Escape with no byte after it for this long is the Escape key

class TerminalLines final : public LineSource {
 public:
  TerminalLines() : out_(::isatty(STDOUT_FILENO) == 1 ? stdout : stderr) {
    // Use the encoding of the user's locale, or UTF-8 without one. Number formats stay as they are.
    const char* locale = std::setlocale(LC_CTYPE, "");
    if (locale == nullptr || MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
    const char* terminal = std::getenv("TERM");
    brackets_ = terminal != nullptr && std::string_view(terminal) != "dumb";
    struct sigaction action {};
    action.sa_handler = [](int) { resized = 1; };
    sigemptyset(&action.sa_mask);
    sigaction(SIGWINCH, &action, nullptr);
  }
  ~TerminalLines() override {
    if (edit_ != nullptr) el_end(edit_);
    if (history_ != nullptr) history_end(history_);
  }
  TerminalLines(const TerminalLines&) = delete;
  TerminalLines& operator=(const TerminalLines&) = delete;

  Status Open() {
    edit_ = el_init("infinigen", stdin, out_, stderr);
    history_ = history_init();
    if (edit_ == nullptr || history_ == nullptr) return IoError("cannot set up the terminal for line editing");
    HistEvent event;
    history(history_, &event, H_SETSIZE, 1000);
    el_set(edit_, EL_CLIENTDATA, this);
    el_set(edit_, EL_PROMPT, &TerminalLines::Prompt);
    el_set(edit_, EL_EDITOR, "emacs");
    el_set(edit_, EL_HIST, ::history, history_);
    el_source(edit_, nullptr);  // ~/.editrc
    el_set(edit_, EL_GETCFN, &TerminalLines::GetCharacter);
    el_set(edit_, EL_ADDFN, "infinigen-cancel", "Drop the line", &TerminalLines::OnCancel);
    el_set(edit_, EL_ADDFN, "infinigen-paste", "Insert pasted text", &TerminalLines::OnPaste);
    el_set(edit_, EL_BIND, "^C", "infinigen-cancel", nullptr);
    el_set(edit_, EL_BIND, "^_", "infinigen-paste", nullptr);
    el_set(edit_, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    return Ok();
  }

  Result<LineEvent> Read(const std::string& prompt, std::string* line) override {
    prompt_ = prompt;
    cancelled_ = false;
    Show(brackets_ ? "\x1b[?2004h" : "");
    int count = 0;
    const char* text = el_gets(edit_, &count);
    Show(brackets_ ? "\x1b[?2004l" : "");
    if (cancelled_) {
      Show(Terminated() ? "\n" : "^C\n");
      return Terminated() ? LineEvent::kEnd : LineEvent::kCancelled;
    }
    if (text == nullptr || count <= 0) {
      Show("\n");
      return LineEvent::kEnd;
    }
    line->assign(text);  // `count` is in characters of the locale, not bytes
    if (!line->empty() && line->back() == '\n') line->pop_back();
    return LineEvent::kLine;
  }

  void Remember(const std::string& text) override {
    HistEvent event;
    if (history(history_, &event, H_FIRST) == 0 && text == event.str) return;
    history(history_, &event, H_ENTER, text.c_str());
  }
  bool terminal() const override { return true; }

 private:
  static TerminalLines& Self(EditLine* edit) {
    void* self = nullptr;
    el_get(edit, EL_CLIENTDATA, &self);
    return *static_cast<TerminalLines*>(self);
  }

  static char* Prompt(EditLine* edit) { return Self(edit).prompt_.data(); }

  static unsigned char OnCancel(EditLine* edit, int) {
    Self(edit).cancelled_ = true;
    return CC_NEWLINE;
  }

  static unsigned char OnPaste(EditLine* edit, int) {
    std::string& pasted = Self(edit).pasted_;
    const bool inserted = pasted.empty() || el_insertstr(edit, pasted.c_str()) == 0;
    pasted.clear();
    return inserted ? CC_REFRESH : CC_REFRESH_BEEP;
  }

  // Returns 1 and a character; 0 at the end of input; -1 on failure. libedit's own reader would retry after Ctrl-C.
  static int GetCharacter(EditLine* edit, wchar_t* character) { return Self(edit).Get(character); }

  int Get(wchar_t* character) {
    while (true) {
      if (!bytes_.empty() && TakePaste()) return *character = kPasteKey, 1;
      std::mbstate_t state{};
      const size_t used = std::mbrtowc(character, bytes_.data(), bytes_.size(), &state);
      if (!bytes_.empty() && used == 0) {  // a NUL byte
        bytes_.erase(0, 1);
        continue;
      }
      if (!bytes_.empty() && used == static_cast<size_t>(-1)) {  // invalid in the locale
        bytes_.erase(0, 1);
        continue;
      }
      if (!bytes_.empty() && used != static_cast<size_t>(-2)) {
        bytes_.erase(0, used);
        return 1;
      }
      const int filled = Fill();
      if (filled == kInterrupted) return *character = kCancelKey, 1;
      if (filled <= 0) return filled;
    }
  }

  // Moves a paste from the front of the input to pasted_. Waits for the end of the paste, or for Ctrl-C.
  bool TakePaste() {
    const auto starts = [&] { return std::string_view(bytes_).substr(0, kPasteBegin.size()); };
    while (starts().size() < kPasteBegin.size() && kPasteBegin.substr(0, starts().size()) == starts()) {
      pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
      if (::poll(&input, 1, kEscapeWaitMs) != 1 || Fill() <= 0) return false;
    }
    if (starts() != kPasteBegin) return false;
    bytes_.erase(0, kPasteBegin.size());
    size_t end = 0;
    while ((end = bytes_.find(kPasteEnd)) == std::string::npos)
      if (bytes_.size() > kMaxLineBytes || Fill() <= 0) return bytes_.clear(), false;
    pasted_ = PastedText(std::string_view(bytes_).substr(0, end));
    bytes_.erase(0, end + kPasteEnd.size());
    return true;
  }

  // Line ends become \n and are removed at the end of the text. Other control characters except tabs are removed.
  static std::string PastedText(std::string_view bytes) {
    std::string text;
    for (size_t i = 0; i < bytes.size(); ++i) {
      const char c = bytes[i];
      if (c == '\r' && i + 1 < bytes.size() && bytes[i + 1] == '\n') continue;
      if (c == '\r')
        text += '\n';
      else if (c == '\n' || c == '\t' || (static_cast<unsigned char>(c) >= 0x20 && c != 0x7F))
        text += c;
    }
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return text;
  }

  static constexpr int kInterrupted = -2;

  // Reads more bytes. Returns 1; 0 at the end of input; -1 on failure; kInterrupted after Ctrl-C.
  int Fill() {
    char buffer[4096];
    while (true) {
      if (TakeInterrupt()) return kInterrupted;
      const ssize_t count = ::read(STDIN_FILENO, buffer, sizeof(buffer));
      if (count >= 0) return bytes_.append(buffer, static_cast<size_t>(count)), count > 0 ? 1 : 0;
      if (errno != EINTR) return -1;
      if (resized != 0) {
        resized = 0;
        el_resize(edit_);
      }
    }
  }

  void Show(const char* text) {
    std::fputs(text, out_);
    std::fflush(out_);
  }

  std::FILE* out_;
  EditLine* edit_ = nullptr;
  History* history_ = nullptr;
  bool brackets_ = false;  // the terminal marks pasted text (bracketed paste)
  std::string prompt_;
  std::string bytes_;  // read but not yet consumed
  std::string pasted_;
  bool cancelled_ = false;
};

}  // namespace

Result<std::unique_ptr<LineSource>> OpenStandardInput() {
  if (::isatty(STDIN_FILENO) != 1) return std::unique_ptr<LineSource>(std::make_unique<PipeLines>());
  auto lines = std::make_unique<TerminalLines>();
  RETURN_IF_ERROR(lines->Open());
  return std::unique_ptr<LineSource>(std::move(lines));
}

}  // namespace infinigen
