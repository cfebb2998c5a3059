//! Numbers and text as people read them in tables, charts and pages.

/// Escapes text for HTML and SVG, including attribute values.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Separates thousands: `1234567` → `1,234,567`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a number with four significant digits: `3.142`, `0.03142`, `3.142e-7`.
pub fn significant(number: f64) -> String {
    if number == 0.0 {
        return "0".into();
    }
    let magnitude = number.abs().log10().floor();
    if !(-4.0..7.0).contains(&magnitude) {
        return format!("{number:.3e}");
    }
    format!("{number:.*}", (3.0 - magnitude).max(0.0) as usize)
}

/// Formats a fraction as a percentage: `0.9731` → `97.31%`.
pub fn percent(fraction: f64) -> String {
    format!("{:.2}%", 100.0 * fraction)
}

/// Formats a duration in its two largest units: `3 h 12 min`.
pub fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..10 => format!("{seconds:.1} s"),
        10..60 => format!("{whole} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        3600..86400 => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
        _ => format!("{} d {} h", whole / 86400, whole % 86400 / 3600),
    }
}

/// Formats a number of bytes: `1.24 GiB`.
pub fn memory(bytes: u64) -> String {
    let mebibytes = bytes as f64 / (1 << 20) as f64;
    if mebibytes < 1024.0 { format!("{mebibytes:.0} MiB") } else { format!("{:.2} GiB", mebibytes / 1024.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_characters_are_escaped() {
        assert_eq!(escape("a<b>&\"c\"'d'"), "a&lt;b&gt;&amp;&quot;c&quot;&#39;d&#39;");
    }

    #[test]
    fn numbers_are_formatted() {
        assert_eq!([0, 999, 1000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [0.0, 12.3456, 0.031416, 3.1416e-7, 98765.4].map(significant),
            ["0", "12.35", "0.03142", "3.142e-7", "98765"]
        );
        assert_eq!(percent(0.97314), "97.31%");
        assert_eq!(
            [0.25, 59.7, 161.0, 11_530.0, 100_000.0].map(duration),
            ["0.2 s", "1 min 0 s", "2 min 41 s", "3 h 12 min", "1 d 3 h"]
        );
        assert_eq!([300 << 20, 5 << 29].map(memory), ["300 MiB", "2.50 GiB"]);
    }
}
