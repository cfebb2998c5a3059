//! Suggestions for misspelt names.

use strsim::levenshtein;

/// At most so many names are listed.
const LISTED: usize = 40;

/// The end of an error message about an unknown name: the name that was probably meant, or else the names that are
/// known.
///
/// ```
/// use falcon_base::nearest;
/// assert_eq!(nearest("warmpu", ["steps", "warmup"]), "did you mean \"warmup\"?");
/// assert_eq!(nearest("colour", ["steps", "warmup"]), "known are steps, warmup");
/// ```
pub fn nearest<'a>(got: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<_> = known.into_iter().collect();
    let best = known.iter().min_by_key(|name| levenshtein(got, name));
    match best {
        None => "nothing else is there".into(),
        Some(best) if levenshtein(got, best) <= best.len().div_ceil(3) => format!("did you mean {best:?}?"),
        Some(_) if known.len() > LISTED => format!("known are {}, …", known[..LISTED].join(", ")),
        Some(_) => format!("known are {}", known.join(", ")),
    }
}
