//! Suggestions for misspelt names.

use strsim::levenshtein;

/// The most known names that a message lists.
const MOST_LISTED: usize = 40;

/// The end of an error message about the unknown name `got`: the known name that was probably meant, or, if none is
/// similar, a list of the known names.
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
        Some(_) if known.len() > MOST_LISTED => format!("known are {}, …", known[..MOST_LISTED].join(", ")),
        Some(_) => format!("known are {}", known.join(", ")),
    }
}
