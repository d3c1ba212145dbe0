//! Files as text, within bounds.

use std::io::{self, Read};

use super::problem::{Mark, Report};

/// Reads a file; `None` if it is larger than `bytes_max`.
///
/// # Errors
/// If it cannot be read.
pub(super) fn read(source: io::Result<impl Read>, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    source?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes).filter(|bytes| bytes.len() as u64 <= bytes_max))
}

/// Returns the content of a file as text. `None`, with a problem reported, if it is none.
pub(super) fn text<'a>(bytes: &'a [u8], report: &mut Report) -> Option<&'a str> {
    let error = match std::str::from_utf8(bytes) {
        Ok(text) => {
            report.read(text);
            return Some(text);
        }
        Err(error) => error,
    };
    let valid = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
    let saturate = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let line = saturate(valid.matches('\n').count() + 1);
    let column = saturate(valid.rsplit('\n').next().unwrap_or_default().chars().count() + 1);
    report.add(Mark { line, column }, "", "the file is not UTF-8");
    None
}
