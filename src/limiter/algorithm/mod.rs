//! Finding the earliest instant with room, one file per algorithm.
//!
//! Pure functions over a [`Calendar`](super::calendar::Calendar): no clock, no store, no tasks.

pub mod sliding_window;

pub use sliding_window::Search;
