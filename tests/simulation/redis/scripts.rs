//! The texts of weir's scripts, as weir puts them together.

use weir::redis::script_texts;

/// A script.
pub(crate) struct Script {
    /// The name of its file.
    pub(crate) name: &'static str,
    /// Its text.
    pub(crate) source: String,
    /// The SHA-1 of the text.
    pub(crate) sha: String,
}

/// Returns the SHA-1 of a script's text, by which it is called.
pub(crate) fn sha_of(source: &str) -> String {
    ::redis::Script::new(source).get_hash().to_owned()
}

/// Returns all scripts.
pub(crate) fn all() -> Vec<Script> {
    let script = |(name, source): (&'static str, String)| Script { name, sha: sha_of(&source), source };
    script_texts().into_iter().map(script).collect()
}
