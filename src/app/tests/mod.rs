//! Tests of the composition root.

mod reload;
mod start;
