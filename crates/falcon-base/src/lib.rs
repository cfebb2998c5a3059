//! Utilities that several crates need and that have nothing to do with Falcon itself.
//!
//! - [`files`] writes files atomically, and reads regular files up to a given size.
//! - [`PathError`] is an I/O error that names the file or folder.
//! - [`nearest`] suggests the correct spelling of a misspelt name.
//! - [`hex`] formats bytes in hexadecimal.

pub mod files;
mod nearest;
mod path_error;

pub use nearest::nearest;
pub use path_error::{AtPath, PathError};

/// Formats bytes in hexadecimal: two lower-case digits for each byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn hex_has_two_digits_a_byte() {
        assert_eq!(super::hex(&[0, 10, 255]), "000aff");
    }
}
