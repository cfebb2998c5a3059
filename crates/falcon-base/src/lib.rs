//! Small things that several crates share and that belong to none of them.
//!
//! [`files`] writes files whole or not at all and reads them within limits; [`PathError`] is an I/O error that names
//! its path; [`nearest`] suggests a name that was probably meant; [`hex`] prints hashes.

pub mod files;
mod nearest;
mod path_error;

pub use nearest::nearest;
pub use path_error::{AtPath, PathError};

/// Lower-case hexadecimal digits, two for each byte.
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
