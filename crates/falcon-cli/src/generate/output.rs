//! Printing generated text to stdout.

use std::io::{self, IsTerminal, StdoutLock, Write};

/// Stdout. On a terminal, control characters in prompts and generated text are escaped, because they could move the
/// cursor or change the terminal's settings.
pub(super) struct Output<W> {
    out: W,
    terminal: bool,
}

impl Output<StdoutLock<'static>> {
    pub fn stdout() -> Self {
        Self { out: io::stdout().lock(), terminal: io::stdout().is_terminal() }
    }
}

impl<W: Write> Output<W> {
    /// Prints a prompt or generated text; on a terminal, its control characters are escaped.
    pub fn text(&mut self, text: &str) -> io::Result<()> {
        if self.terminal { self.raw(&escape_control(text)) } else { self.raw(text) }
    }

    /// Prints JSON. On a terminal, the control characters U+007F to U+009F are escaped, which serde leaves as they are.
    pub fn json(&mut self, json: &str) -> io::Result<()> {
        let escaped = |c: char| if c.is_control() { format!("\\u{:04x}", c as u32) } else { c.into() };
        if self.terminal { self.raw(&json.chars().map(escaped).collect::<String>()) } else { self.raw(json) }
    }

    /// Prints text as it is. On a terminal, the text must not have unescaped control characters of a model or prompt.
    pub fn raw(&mut self, text: &str) -> io::Result<()> {
        self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush())
    }
}

/// Escapes control characters other than newlines and tabs.
fn escape_control(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        match character {
            '\n' | '\t' => out.push(character),
            control if control.is_control() => out += &format!("\\x{:02x}", control as u32),
            printable => out.push(printable),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_on_a_terminal() {
        let text = "a\u{1b}[2J\r\n\tb\u{7f}\u{9b}é";
        let mut output = Output { out: Vec::new(), terminal: true };
        output.text(text).unwrap();
        assert_eq!(String::from_utf8(output.out).unwrap(), "a\\x1b[2J\\x0d\n\tb\\x7f\\x9bé");
        let mut output = Output { out: Vec::new(), terminal: false };
        output.text(text).unwrap();
        assert_eq!(String::from_utf8(output.out).unwrap(), text);
    }
}
