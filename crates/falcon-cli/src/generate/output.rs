//! Printing generated text to stdout.

use std::io::{self, IsTerminal, StdoutLock, Write};

/// Stdout. On a terminal, control characters of models and prompts are made visible, because they could move the
/// cursor or worse.
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
    /// Prints text of a model or a prompt.
    pub fn text(&mut self, text: &str) -> io::Result<()> {
        if self.terminal { self.raw(&visible(text)) } else { self.raw(text) }
    }

    /// Prints JSON, in which serde leaves the control characters from 7f on as they are.
    pub fn json(&mut self, json: &str) -> io::Result<()> {
        let escaped = |c: char| if c.is_control() { format!("\\u{:04x}", c as u32) } else { c.into() };
        if self.terminal { self.raw(&json.chars().map(escaped).collect::<String>()) } else { self.raw(json) }
    }

    /// Prints text without control characters.
    pub fn raw(&mut self, text: &str) -> io::Result<()> {
        self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush())
    }
}

/// Escapes control characters other than newlines and tabs.
fn visible(text: &str) -> String {
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
