//! The file of recorded ratios, and the comparison with it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use falcon_base::PathError;
use falcon_base::files::{read_file, write_file};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The version of the format.
const FORMAT: u32 = 1;
/// The largest file that is read. A section has a few kilobytes.
const LARGEST: u64 = 1 << 20;

/// A file of ratios, with a section for each kind of vector instructions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RatioFile {
    format: u32,
    /// For readers of the file.
    about: String,
    sections: BTreeMap<String, RatioSection>,
}

/// The ratios of one machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct RatioSection {
    /// The machine.
    pub machine: String,
    /// The version of Falcon.
    pub version: String,
    /// The ratios by row.
    pub ratios: BTreeMap<String, f64>,
}

/// A file of ratios cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RatioFileError {
    /// The file cannot be read or written.
    #[error(transparent)]
    Path(#[from] PathError),
    /// Not JSON, or JSON of something else.
    #[error("{path}: not a file of recorded ratios: {source}")]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// Another version of the format.
    #[error("{path}: it has format {got}, this version of falcon reads {FORMAT}: record it again")]
    Format {
        /// The file.
        path: PathBuf,
        /// The format of the file.
        got: u32,
    },
    /// A ratio that nothing can be compared with.
    #[error("{path}: the ratio of {row:?} for {section} is {got}: it must be above 0 and at most {MOST}")]
    Ratio {
        /// The file.
        path: PathBuf,
        /// The vector instructions of the section.
        section: String,
        /// The row.
        row: String,
        /// The ratio.
        got: f64,
    },
}

/// No program is that much faster than the machine.
const MOST: f64 = 1000.0;

impl RatioFile {
    /// A file without sections.
    pub fn empty() -> Self {
        let about =
            "Speeds relative to what the machine can do; written by `falcon bench --record`, compared by `falcon \
                     bench --check`."
                .into();
        Self { format: FORMAT, about, sections: BTreeMap::new() }
    }

    pub fn read(path: &Path) -> Result<Self, RatioFileError> {
        let bytes = read_file(path, LARGEST)?;
        let json = |source| RatioFileError::Json { path: path.into(), source };
        /// The version alone, because the rest may look different in another one.
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let Version { format } = serde_json::from_slice(&bytes).map_err(json)?;
        if format != FORMAT {
            return Err(RatioFileError::Format { path: path.into(), got: format });
        }
        let file: Self = serde_json::from_slice(&bytes).map_err(json)?;
        for (section, RatioSection { ratios, .. }) in &file.sections {
            // JSON has no NaN.
            if let Some((row, got)) = ratios.iter().find(|(_, ratio)| !(**ratio > 0.0 && **ratio <= MOST)) {
                let (path, section, row) = (path.into(), section.clone(), row.clone());
                return Err(RatioFileError::Ratio { path, section, row, got: *got });
            }
        }
        Ok(file)
    }

    pub fn write(&self, path: &Path) -> Result<(), RatioFileError> {
        let json = serde_json::to_string_pretty(self).expect("ratios are plain data") + "\n";
        Ok(write_file(path, json.as_bytes())?)
    }

    /// The section of some vector instructions, if there is one.
    pub fn section(&self, instructions: &str) -> Option<&RatioSection> {
        self.sections.get(instructions)
    }

    /// The names of all sections, such as `avx2, avx512`.
    pub fn known(&self) -> String {
        match self.sections.keys().map(String::as_str).collect::<Vec<_>>()[..] {
            [] => "no machine".into(),
            ref names => names.join(", "),
        }
    }

    /// The section of some vector instructions, to be changed.
    pub fn section_mut(&mut self, instructions: &str) -> &mut RatioSection {
        self.sections.entry(instructions.into()).or_default()
    }
}

/// A recorded ratio beside a measured one. At least one of the two is there.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Compared {
    pub row: String,
    pub recorded: Option<f64>,
    pub measured: Option<f64>,
    pub verdict: Verdict,
}

/// What a comparison shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It fell by no more than the tolerance.
    Kept,
    /// It fell by more.
    Fell,
    /// This version measures the row, and the file has no ratio for it.
    NotRecorded,
    /// The file has a ratio for the row, and this version does not measure it.
    NotMeasured,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kept => "kept",
            Self::Fell => "fell",
            Self::NotRecorded => "not recorded",
            Self::NotMeasured => "not measured",
        })
    }
}

impl Compared {
    /// The change relative to the recorded ratio.
    pub fn change(&self) -> Option<f64> {
        Some(self.measured? / self.recorded? - 1.0)
    }
}

/// Compares every row that was recorded or measured, in the order of `order` and then by name. A ratio may fall by
/// `tolerance` of what was recorded.
pub(super) fn compare(
    recorded: &BTreeMap<String, f64>,
    measured: &BTreeMap<String, f64>,
    order: &[&str],
    tolerance: f64,
) -> Vec<Compared> {
    let rest: BTreeSet<&str> = recorded.keys().chain(measured.keys()).map(String::as_str).collect();
    let rest = rest.into_iter().filter(|row| !order.contains(row));
    let ordered = order.iter().copied().filter(|row| recorded.contains_key(*row) || measured.contains_key(*row));
    let compared = |row: &str| {
        let (recorded, measured) = (recorded.get(row).copied(), measured.get(row).copied());
        let verdict = match (recorded, measured) {
            (Some(recorded), Some(measured)) if measured < recorded * (1.0 - tolerance) => Verdict::Fell,
            (Some(_), Some(_)) => Verdict::Kept,
            (None, _) => Verdict::NotRecorded,
            (Some(_), None) => Verdict::NotMeasured,
        };
        Compared { row: row.into(), recorded, measured, verdict }
    };
    ordered.chain(rest).map(compared).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn ratios(of: &[(&str, f64)]) -> BTreeMap<String, f64> {
        of.iter().map(|(row, ratio)| (row.to_string(), *ratio)).collect()
    }

    #[test]
    fn rows_that_fell_are_told_from_the_others() {
        use Verdict::*;
        let recorded =
            ratios(&[("within", 1.0), ("beyond", 1.0), ("faster", 1.0), ("unknown", 0.5), ("first", 0.4)]);
        let measured =
            ratios(&[("within", 0.851), ("beyond", 0.849), ("faster", 3.0), ("new", 0.5), ("first", 0.4)]);
        let compared = compare(&recorded, &measured, &["first", "absent"], 0.15);
        let verdicts: Vec<(&str, Verdict)> = compared.iter().map(|row| (row.row.as_str(), row.verdict)).collect();
        assert_eq!(
            verdicts,
            [
                ("first", Kept),
                ("beyond", Fell),
                ("faster", Kept),
                ("new", NotRecorded),
                ("unknown", NotMeasured),
                ("within", Kept)
            ]
        );
        let changes: Vec<Option<f64>> = compared.iter().map(Compared::change).collect();
        assert_eq!(changes[..5], [Some(0.0), Some(0.849 - 1.0), Some(2.0), None, None]);
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ratios.json");
        let mut file = RatioFile::empty();
        *file.section_mut("avx2") = RatioSection {
            machine: "a machine".into(),
            version: "0.1.0".into(),
            ratios: ratios(&[("row", 0.25)]),
        };
        file.section_mut("neon").ratios = ratios(&[]);
        file.write(&path).unwrap();
        assert_eq!(RatioFile::read(&path).unwrap(), file);
        assert_eq!((file.known(), file.section("avx512")), ("avx2, neon".into(), None));
    }

    #[test]
    fn files_that_nothing_can_be_compared_with_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ratios.json");
        let file = |ratio: &str| {
            format!(
                r#"{{"format": 1, "about": "", "sections":
                {{"avx2": {{"machine": "", "version": "", "ratios": {{"row": {ratio}}}}}}}}}"#
            )
        };
        let refused = |text: &str| {
            fs::write(&path, text).unwrap();
            RatioFile::read(&path).map(drop).map_err(|error| error.to_string()).unwrap_err()
        };
        for (text, message) in [
            ("", "not a file of recorded ratios"),
            ("[]", "not a file of recorded ratios"),
            (r#"{"format": "one"}"#, "not a file of recorded ratios"),
            (r#"{"format": 7}"#, "it has format 7, this version of falcon reads 1"),
            (r#"{"format": 1}"#, "missing field `about`"),
            (&file("0"), "the ratio of \"row\" for avx2 is 0: it must be above 0 and at most 1000"),
            (&file("-0.5"), "is -0.5: it must be"),
            (&file("1e300"), "it must be above 0 and at most 1000"),
            (&file("1e400"), "number out of range"),
            (&file("null"), "not a file of recorded ratios"),
            (&"[".repeat(100_000), "not a file of recorded ratios"),
            (&" ".repeat(2 << 20), "2097152 bytes, where at most 1048576 are expected"),
        ] {
            let refused = refused(text);
            assert!(refused.contains(message) && refused.contains("ratios.json"), "{message}: {refused}");
        }
        fs::write(&path, file("0.5")).unwrap();
        assert!(RatioFile::read(&path).is_ok());
        assert!(RatioFile::read(&folder.path().join("none")).unwrap_err().to_string().contains("No such file"));
    }
}
