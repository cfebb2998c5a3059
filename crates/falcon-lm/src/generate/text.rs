//! Turns generated tokens into text, and decides where the text ends.

use serde::Serialize;

use crate::data::{TextStream, Tokenizer};

/// The text generated after one prompt, decoded token by token. It ends at the tokenizer's end token, before the
/// first stop string, or after a number of tokens.
#[derive(Debug)]
pub struct Continuation<'a> {
    decoder: TextStream<'a>,
    end: u32,
    stops: Stops,
    max_tokens: usize,
    text: String,
    tokens: usize,
    ended_by: Option<EndedBy>,
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum EndedBy {
    /// It reached the maximum number of tokens.
    Length,
    /// The model generated the token that ends a document.
    End,
    /// A stop string was generated.
    Stop,
    /// The generation was cancelled.
    Interrupted,
}

impl<'a> Continuation<'a> {
    /// An empty text of at most `max_tokens` tokens. `before` is the token that precedes it. Empty stop strings are
    /// ignored.
    pub fn new(tokenizer: &'a Tokenizer, before: Option<u32>, stops: &[String], max_tokens: usize) -> Self {
        Self {
            decoder: tokenizer.stream(before),
            end: tokenizer.end(),
            stops: Stops::new(stops),
            max_tokens,
            text: String::new(),
            tokens: 0,
            ended_by: (max_tokens == 0).then_some(EndedBy::Length),
        }
    }

    /// Appends a token. Returns the text that can be shown now: characters that are not complete yet, and what may be
    /// the beginning of a stop string, are held back.
    pub fn push(&mut self, token: u32) -> String {
        self.tokens += 1;
        let mut new = String::new();
        if token == self.end {
            self.ended_by = Some(EndedBy::End);
        } else {
            let (shown, stopped) = self.stops.push(&self.decoder.push(token));
            new = shown;
            self.ended_by = match stopped {
                true => Some(EndedBy::Stop),
                false => (self.tokens >= self.max_tokens).then_some(EndedBy::Length),
            };
        }
        if matches!(self.ended_by, Some(EndedBy::End | EndedBy::Length)) {
            let (shown, stopped) = self.stops.push(&self.decoder.finish());
            new += &shown;
            if !stopped {
                new += &self.stops.finish();
            }
        }
        self.text += &new;
        new
    }

    /// Marks the text as interrupted, unless it has already ended. Text that is still held back is discarded.
    pub fn interrupt(&mut self) {
        self.ended_by.get_or_insert(EndedBy::Interrupted);
    }

    /// The text so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The number of tokens so far.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Why the text ended, or `None` if it has not ended yet.
    pub fn ended_by(&self) -> Option<EndedBy> {
        self.ended_by
    }
}

/// Passes text through up to the first of some stop strings. Text that may be the beginning of one is held back.
#[derive(Clone, Debug)]
struct Stops {
    stops: Vec<String>,
    held: String,
}

impl Stops {
    fn new(stops: &[String]) -> Self {
        Self { stops: stops.iter().filter(|stop| !stop.is_empty()).cloned().collect(), held: String::new() }
    }

    /// Returns the text that can be shown, and whether a stop string was found.
    fn push(&mut self, text: &str) -> (String, bool) {
        self.held += text;
        if let Some(at) = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min() {
            self.held.truncate(at);
            return (self.finish(), true);
        }
        let may_be_stop = |at: &usize| {
            let suffix = &self.held[*at..];
            self.stops.iter().any(|stop| stop.starts_with(suffix))
        };
        let shown = self.held.char_indices().map(|(at, _)| at).find(may_be_stop).unwrap_or(self.held.len());
        let held = self.held.split_off(shown);
        (std::mem::replace(&mut self.held, held), false)
    }

    /// The text that is still held back.
    fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_ends_at_a_stop() {
        let run = |stops: &[&str], pieces: &[&str]| {
            let mut text = Stops::new(&stops.iter().map(|stop| stop.to_string()).collect::<Vec<_>>());
            let mut shown = String::new();
            for piece in pieces {
                let (more, stopped) = text.push(piece);
                shown += &more;
                if stopped {
                    return (shown, true);
                }
            }
            (shown + &text.finish(), false)
        };
        assert_eq!(run(&["END"], &["one E", "N", "D two"]), ("one ".into(), true));
        assert_eq!(run(&["END"], &["one E", "N", "O two"]), ("one ENO two".into(), false));
        assert_eq!(run(&["aab"], &["aa", "a", "b"]), ("a".into(), true));
        assert_eq!(run(&["x", "é!"], &["caf", "é", "? no"]), ("café? no".into(), false));
        assert_eq!(run(&[""], &["all"]), ("all".into(), false));
        assert_eq!(
            run(&["two", "on"], &["one two"]),
            (String::new(), true),
            "the stop string that comes first ends the text"
        );
    }

    #[test]
    fn ended_by_is_the_reason_the_text_ended() {
        let bytes = Tokenizer::bytes();
        let run = |stops: &[&str], max_tokens, tokens: &[u32]| {
            let stops: Vec<String> = stops.iter().map(|stop| stop.to_string()).collect();
            let mut text = Continuation::new(&bytes, None, &stops, max_tokens);
            let tokens = tokens.iter().take_while(|token| {
                let going = text.ended_by().is_none();
                if going {
                    text.push(**token);
                }
                going
            });
            assert_eq!(tokens.count(), text.tokens());
            (text.text().to_string(), text.ended_by())
        };
        let tokens = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
        assert_eq!(run(&[], 0, &tokens("ab")), (String::new(), Some(EndedBy::Length)));
        assert_eq!(
            run(&["cd"], 3, &tokens("abcdef")),
            ("abc".into(), Some(EndedBy::Length)),
            "text that was held back is shown"
        );
        assert_eq!(run(&["cd"], 9, &tokens("abcdef")), ("ab".into(), Some(EndedBy::Stop)));
        assert_eq!(run(&["cd"], 9, &tokens("abc")), ("ab".into(), None));
        assert_eq!(run(&["cd"], 9, &[97, 99, bytes.end(), 98]), ("ac".into(), Some(EndedBy::End)));
        let mut text = Continuation::new(&bytes, None, &[], 1);
        text.interrupt();
        assert_eq!(text.ended_by(), Some(EndedBy::Interrupted));
    }
}
