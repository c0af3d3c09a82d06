#!/usr/bin/env python3
"""Runs a program in a terminal of fixed size and writes what the terminal shows at the end as HTML.

Usage: terminal-picture.py OUTPUT.html SECONDS COLUMNS ROWS PROGRAM ARGUMENT…
Only the sequences that ratatui writes are understood. After SECONDS the program gets SIGTERM; the last complete frame
before that is drawn.
"""
import fcntl, html, os, pty, re, select, signal, struct, sys, termios, time

COLORS = ["#2e3436", "#cc0000", "#4e9a06", "#c4a000", "#3465a4", "#75507b", "#06989a", "#d3d7cf"]


class Screen:
    def __init__(self, columns, rows):
        self.columns, self.rows = columns, rows
        self.cells = [[(" ", "")] * columns for _ in range(rows)]
        self.x = self.y = 0
        self.bold, self.color = False, None

    def style(self):
        parts = ["font-weight:bold"] if self.bold else []
        return ";".join(parts + ([f"color:{self.color}"] if self.color else []))

    def put(self, c):
        if self.y < self.rows and self.x < self.columns:
            self.cells[self.y][self.x] = (c, self.style())
        self.x += 1

    def sequence(self, parameters, end):
        numbers = [int(n) if n.isdigit() else 0 for n in parameters.split(";")]
        if end == "H":
            self.y, self.x = max(numbers[0], 1) - 1, (numbers[1] if len(numbers) > 1 else 1) - 1
        elif end == "J":
            self.cells = [[(" ", "")] * self.columns for _ in range(self.rows)]
        elif end == "m":
            for n in numbers:
                if n == 0:
                    self.bold, self.color = False, None
                elif n == 1:
                    self.bold = True
                elif n == 22:
                    self.bold = False
                elif 30 <= n <= 37:
                    self.color = COLORS[n - 30]
                elif n == 39:
                    self.color = None

    def feed(self, text):
        for part in re.findall(r"\x1b\[([0-9;]*)([A-Za-z])|\x1b\[\?[0-9;]*[hl]|\x1b.|([^\x1b])", text, re.S):
            if part[1]:
                self.sequence(part[0], part[1])
            elif part[2] == "\r":
                self.x = 0
            elif part[2] == "\n":
                self.y += 1
            elif part[2]:
                self.put(part[2])

    def html(self):
        lines = []
        for row in self.cells:
            line, last = "", None
            for c, style in row:
                if style != last:
                    line += ("</span>" if last is not None else "") + f'<span style="{style}">'
                    last = style
                line += html.escape(c)
            lines.append(line + "</span>")
        body = "\n".join(lines)
        return (
            '<!doctype html><meta charset="utf-8"><body style="margin:0;background:#fff">'
            '<pre style="margin:0;padding:12px;font:13px/1.3 monospace;color:#111">' + body + "</pre></body>\n"
        )


def main():
    output, seconds, columns, rows = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execvp(sys.argv[5], sys.argv[5:])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    os.kill(pid, signal.SIGWINCH)
    data, end = b"", time.monotonic() + seconds
    while time.monotonic() < end:
        if select.select([terminal], [], [], max(end - time.monotonic(), 0))[0]:
            try:
                data += os.read(terminal, 65536)
            except OSError:
                break
    os.kill(pid, signal.SIGTERM)
    os.waitpid(pid, 0)
    screen = Screen(columns, rows)
    screen.feed(data.decode("utf-8", "replace"))
    with open(output, "w") as file:
        file.write(screen.html())


main()
