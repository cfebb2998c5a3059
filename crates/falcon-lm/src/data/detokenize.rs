//! Detokenization of text that was split into words and punctuation, as lm-evaluation-harness does it for WikiText.
//!
//! Perplexities per word and per byte count the words and bytes of the original text, so that the way of detokenizing
//! does not change the denominator.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::piece::Piece;

/// How a text was tokenized, and is to be detokenized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Detokenizer {
    /// Raw WikiText: spaces around punctuation, `@-@` within words, and pages that begin with titles such as
    /// ` = Title = `.
    #[serde(rename = "wikitext")]
    WikiText,
}

impl fmt::Display for Detokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WikiText => "wikitext",
        })
    }
}

impl Detokenizer {
    /// Whether a text may be of this kind, judged by its first line that is not empty. None without such a line.
    pub(super) fn recognises(self, beginning: &str) -> Option<bool> {
        beginning.split('\n').find(|line| !line.trim_matches(is_space).is_empty()).map(|line| match self {
            Self::WikiText => is_title(line),
        })
    }

    /// A detokenized page, with the counts of the original.
    fn document(self, page: &str) -> Piece {
        match self {
            Self::WikiText => {
                Piece { text: join_wikitext(page), first: true, bytes: page.len(), words: split_at_spaces(page) }
            }
        }
    }
}

/// Divides text into pages as it is read: the lines from one title to the next, without the line end between two pages.
pub(super) struct Pages {
    detokenizer: Detokenizer,
    /// The lines of the page so far, if there are any.
    page: Option<String>,
    /// The line so far.
    line: String,
}

impl Pages {
    pub fn new(detokenizer: Detokenizer) -> Self {
        Self { detokenizer, page: None, line: String::new() }
    }

    /// Adds text, and passes pages that are complete to `take`.
    pub fn add<E>(&mut self, piece: &Piece, take: &mut impl FnMut(Piece) -> Result<(), E>) -> Result<(), E> {
        if piece.first {
            self.finish(take)?;
        }
        for (index, part) in piece.text.split('\n').enumerate() {
            if index > 0 {
                self.end_line(take)?;
            }
            self.line.push_str(part);
        }
        Ok(())
    }

    /// Bytes of the page that is not complete yet.
    pub fn held(&self) -> usize {
        self.page.as_ref().map_or(0, String::len) + self.line.len()
    }

    /// Ends the document, and passes its last page to `take`.
    pub fn finish<E>(&mut self, take: &mut impl FnMut(Piece) -> Result<(), E>) -> Result<(), E> {
        self.end_line(take)?;
        self.end_page(take)
    }

    fn end_line<E>(&mut self, take: &mut impl FnMut(Piece) -> Result<(), E>) -> Result<(), E> {
        let mut line = std::mem::take(&mut self.line);
        // Python, which the harness is written in, drops the `\r` of Windows line ends.
        if line.ends_with('\r') {
            line.pop();
        }
        if is_title(&line) {
            self.end_page(take)?;
        }
        match &mut self.page {
            Some(page) => {
                page.push('\n');
                page.push_str(&line);
            }
            None => self.page = Some(line),
        }
        Ok(())
    }

    fn end_page<E>(&mut self, take: &mut impl FnMut(Piece) -> Result<(), E>) -> Result<(), E> {
        match self.page.take().filter(|page| !page.trim_matches(is_space).is_empty()) {
            Some(page) => take(self.detokenizer.document(&page)),
            None => Ok(()),
        }
    }
}

/// Whether a line is the title of a page, ` = Title = `, and not a heading within one, ` = = Section = = `.
fn is_title(line: &str) -> bool {
    let line = line.replace("= = =", "===").replace("= =", "==");
    let line = line.trim_matches(is_space);
    line.starts_with("= ") && line.ends_with(" =")
}

/// Python's white space, which has four control characters more than Unicode's.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// Words as the harness counts them: the parts of a split at white space, the empty ones before the first space
/// and after the last included.
fn split_at_spaces(text: &str) -> usize {
    let runs = text.split(|c| !is_space(c)).filter(|run| !run.is_empty());
    runs.count() + 1
}

/// Replacements before those of brackets and quotes, in this order.
const BEFORE: [(&str, &str); 10] = [
    ("s '", "s'"),
    (" @-@ ", "-"),
    (" @,@ ", ","),
    (" @.@ ", "."),
    (" : ", ": "),
    (" ; ", "; "),
    (" . ", ". "),
    (" ! ", "! "),
    (" ? ", "? "),
    (" , ", ", "),
];
/// Opening and closing brackets and quotes, in this order.
const PAIRS: [[char; 2]; 5] = [['(', ')'], ['[', ']'], ['{', '}'], ['"', '"'], ['\'', '\'']];
/// Replacements after those of brackets and quotes, in this order.
const AFTER: [(&str, &str); 8] = [
    ("= = = =", "===="),
    ("= = =", "==="),
    ("= =", "=="),
    (" ° ", "°"),
    (" \n", "\n"),
    ("\n ", "\n"),
    (" N ", " 1 "),
    (" 's", "'s"),
];

/// Detokenizes a page of WikiText as the harness does. The order of the rules matters, and some go too far: an
/// apostrophe is taken for a quote that closes at the next one. One rule of the harness is left out: it should
/// turn `' 90` into `'90`, but never matches, because its pattern has slashes around it.
fn join_wikitext(page: &str) -> String {
    let replace = |text: String, (from, to): &(&str, &str)| text.replace(from, to);
    let text = BEFORE.iter().fold(page.to_string(), replace);
    let text = PAIRS.iter().fold(text, |text, pair| close(&text, *pair));
    AFTER.iter().fold(text, replace)
}

/// Removes white space, including line ends, after an opening character and before the next closing one. Brackets in
/// between are ignored.
fn close(text: &str, [open, close]: [char; 2]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(open)
        && let Some((inside, after)) = after.split_once(close)
    {
        out.extend([
            before,
            open.encode_utf8(&mut [0; 4]),
            inside.trim_matches(is_space),
            close.encode_utf8(&mut [0; 4]),
        ]);
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wikitext_is_detokenized() {
        for (from, to) in [
            ("a guest @-@ starring role", "a guest-starring role"),
            ("5 @,@ 000 @.@ 5 people", "5,000.5 people"),
            ("film , and ; he : it ! or ? no . Yes", "film, and; he: it! or? no. Yes"),
            // The space before the second comma went with the first.
            ("a , , b", "a, , b"),
            ("the girls ' house", "the girls' house"),
            ("( born 1982 ) and [ 3 ] { x }", "(born 1982) and [3] {x}"),
            ("as \" Craig \" in \" Story \"", "as \"Craig\" in \"Story\""),
            // Brackets within brackets are ignored, and a bracket that is never closed is left alone.
            ("( a ( b ) c ) d ( e", "(a ( b) c ) d ( e"),
            // Apostrophes are taken for quotes, also across lines: the second closes the first.
            ("Teddy 's Story", "Teddy's Story"),
            ("Ann 's and Bob 's cat", "Ann's and Bob's cat"),
            ("say ' yes ' twice", "say 'yes' twice"),
            ("it ' \n s '", "it's'"),
            ("the 5 ° C N side", "the 5°C 1 side"),
            (
                " = Title = \n \n = = Part = = \n = = = Third = = = \n Text . \n",
                " = Title =\n\n== Part ==\n=== Third ===\nText.\n",
            ),
        ] {
            assert_eq!(join_wikitext(from), to, "{from:?}");
        }
    }

    fn pages(pieces: &[(&str, bool)]) -> Vec<Piece> {
        let (mut pages, mut found) = (Pages::new(Detokenizer::WikiText), Vec::new());
        let mut take = |page| {
            found.push(page);
            Ok::<_, ()>(())
        };
        for (text, first) in pieces {
            pages.add(&Piece::new((*text).into(), *first), &mut take).unwrap();
        }
        pages.finish(&mut take).unwrap();
        found
    }

    /// Counted by hand. The first page is ` = A = `, ` b @-@ c . ` and ` = = D = = ` with line ends between them: 7, 11
    /// and 11 bytes and 2 more. A split at its white space has an empty part, =, A, =, b, @-@, c, ., =, =, D, =, = and
    /// an empty part. The second page, ` = E = `, an empty line and `f`, is 7 + 1 + 0 + 1 + 1 bytes in an empty part,
    /// =, E, = and f.
    #[test]
    fn pages_have_the_counts_of_the_original_text() {
        let text = " \n = A = \n b @-@ c . \n = = D = = \n = E = \n\nf";
        let expected = [
            Piece { text: " = A =\nb-c.\n== D == ".into(), first: true, bytes: 31, words: 14 },
            Piece { text: " = E =\n\nf".into(), first: true, bytes: 10, words: 5 },
        ];
        assert_eq!(pages(&[(text, true)]), expected);
        // The pages do not depend on where the pieces of a document are cut.
        for cut in 1..text.len() {
            assert_eq!(pages(&[(&text[..cut], true), (&text[cut..], false)]), expected, "at {cut}");
        }
        assert_eq!(pages(&[(&text.replace('\n', "\r\n"), true)]), expected, "as Windows writes it");
        // The last page of a document ends with it, and keeps its last line end.
        let two = pages(&[(" = A = \n", true), ("g", true)]);
        assert_eq!(
            two.iter().map(|page| (page.text.as_str(), page.bytes, page.words)).collect::<Vec<_>>(),
            [(" = A =\n", 8, 5), ("g", 1, 1)]
        );
    }

    #[test]
    fn titles_are_distinguished_from_other_headings() {
        for (line, expected) in [
            (" = Robert Boulter = ", true),
            ("= 1 rad / s and a nominal impedance k =", true),
            (" = = Career = = ", false),
            (" = = = 2006 = = = ", false),
            (" = = = = Deeper = = = = ", false),
            (" a = b ", false),
            ("= a", false),
            (" = ", false),
        ] {
            assert_eq!(is_title(line), expected, "{line:?}");
        }
        let recognised = |text| Detokenizer::WikiText.recognises(text);
        assert_eq!(
            [recognised(" \n\n = A = \n"), recognised("A\n = A = \n"), recognised(" \n")],
            [Some(true), Some(false), None]
        );
    }

    #[test]
    fn words_are_parts_of_a_split() {
        let cases = [("a b", 2), (" a \n b ", 4), ("", 1), ("\n", 2), ("a\u{1c}b\u{a0}c", 3)];
        for (text, words) in cases {
            assert_eq!(split_at_spaces(text), words, "{text:?}");
        }
    }
}
