//! (opened with its first commit)
