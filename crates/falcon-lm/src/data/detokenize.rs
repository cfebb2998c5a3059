//! Text that was taken apart into words and signs, put together again, as lm-evaluation-harness reads WikiText.
//!
//! The words and bytes of a perplexity are those of the text as it was found: another way to put it together does
//! not change what is divided by.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::source::Piece;

/// How text was taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Detokenizer {
    /// As the raw WikiText is: spaces around signs, `@-@` within words, and one page after the other under
    /// headings such as ` = Title = `.
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
    /// Whether a text may be of this kind, by its first line that is not empty. None if there is no such line.
    pub(super) fn recognises(self, beginning: &str) -> Option<bool> {
        beginning.split('\n').find(|line| !line.trim_matches(is_space).is_empty()).map(|line| match self {
            Self::WikiText => is_title(line),
        })
    }

    /// A page put together again, with what is counted of it.
    fn document(self, page: &str) -> Piece {
        match self {
            Self::WikiText => {
                Piece { text: join_wikitext(page), first: true, bytes: page.len(), words: split_at_spaces(page) }
            }
        }
    }
}

/// Divides text into pages while it is read: lines from one title to the next, without the line end between them.
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

    /// More text; hands pages that are whole to `take`.
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

    /// Bytes of the page that is not yet whole.
    pub fn held(&self) -> usize {
        self.page.as_ref().map_or(0, String::len) + self.line.len()
    }

    /// There is no more text of this document: hands its last page to `take`.
    pub fn finish<E>(&mut self, take: &mut impl FnMut(Piece) -> Result<(), E>) -> Result<(), E> {
        self.end_line(take)?;
        self.end_page(take)
    }

    fn end_line<E>(&mut self, take: &mut impl FnMut(Piece) -> Result<(), E>) -> Result<(), E> {
        let mut line = std::mem::take(&mut self.line);
        // Python reads line ends of Windows as others.
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

/// Whether a page begins with this line: ` = Title = `, while ` = = Section = = ` does not.
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

/// What is replaced before brackets and quotes are closed, in this order.
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
/// What opens and what closes, in this order.
const PAIRS: [[char; 2]; 5] = [['(', ')'], ['[', ']'], ['{', '}'], ['"', '"'], ['\'', '\'']];
/// What is replaced after that, in this order.
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

/// WikiText put together again. The order of the rules matters, and some go further than one would wish: an
/// apostrophe is taken for a quote that closes at the next one. One rule of the harness is not here; it was to
/// write `' 90` as `'90` and by an oversight looks for slashes around that.
fn join_wikitext(page: &str) -> String {
    let replace = |text: String, (from, to): &(&str, &str)| text.replace(from, to);
    let text = BEFORE.iter().fold(page.to_string(), replace);
    let text = PAIRS.iter().fold(text, |text, pair| close(&text, *pair));
    AFTER.iter().fold(text, replace)
}

/// Removes white space, line ends too, after what opens and before the next that closes; what is in between is not
/// looked at.
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
    fn wikitext_is_put_together() {
        for (from, to) in [
            ("a guest @-@ starring role", "a guest-starring role"),
            ("5 @,@ 000 @.@ 5 people", "5,000.5 people"),
            ("film , and ; he : it ! or ? no . Yes", "film, and; he: it! or? no. Yes"),
            // The space before the second comma went with the first.
            ("a , , b", "a, , b"),
            ("the girls ' house", "the girls' house"),
            ("( born 1982 ) and [ 3 ] { x }", "(born 1982) and [3] {x}"),
            ("as \" Craig \" in \" Story \"", "as \"Craig\" in \"Story\""),
            // What opens inside is not looked at, what never closes is left alone.
            ("( a ( b ) c ) d ( e", "(a ( b) c ) d ( e"),
            // Apostrophes are quotes to it, over lines too: the second closes what the first opened.
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

    /// By hand. The first page is ` = A = `, ` b @-@ c . ` and ` = = D = = ` with line ends between them: 7, 11
    /// and 11 bytes and 2 more. A split at its white space has an empty part, =, A, =, b, @-@, c, ., =, =, D, =, =
    /// and an empty part. The second page, ` = E = `, an empty line and `f`, is 7 + 1 + 0 + 1 + 1 bytes in an
    /// empty part, =, E, = and f.
    #[test]
    fn pages_are_counted_as_they_were_found() {
        let text = " \n = A = \n b @-@ c . \n = = D = = \n = E = \n\nf";
        let expected = [
            Piece { text: " = A =\nb-c.\n== D == ".into(), first: true, bytes: 31, words: 14 },
            Piece { text: " = E =\n\nf".into(), first: true, bytes: 10, words: 5 },
        ];
        assert_eq!(pages(&[(text, true)]), expected);
        // Wherever it is cut when it is read.
        for cut in 1..text.len() {
            assert_eq!(pages(&[(&text[..cut], true), (&text[cut..], false)]), expected, "at {cut}");
        }
        assert_eq!(pages(&[(&text.replace('\n', "\r\n"), true)]), expected, "as Windows writes it");
        // A document ends its last page, and keeps the line end there.
        let two = pages(&[(" = A = \n", true), ("g", true)]);
        assert_eq!(
            two.iter().map(|page| (page.text.as_str(), page.bytes, page.words)).collect::<Vec<_>>(),
            [(" = A =\n", 8, 5), ("g", 1, 1)]
        );
    }

    #[test]
    fn titles_are_told_from_other_headings() {
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
        let of = |text| Detokenizer::WikiText.recognises(text);
        assert_eq!([of(" \n\n = A = \n"), of("A\n = A = \n"), of(" \n")], [Some(true), Some(false), None]);
    }

    #[test]
    fn words_are_parts_of_a_split() {
        let cases = [("a b", 2), (" a \n b ", 4), ("", 1), ("\n", 2), ("a\u{1c}b\u{a0}c", 3)];
        for (text, words) in cases {
            assert_eq!(split_at_spaces(text), words, "{text:?}");
        }
    }
}
