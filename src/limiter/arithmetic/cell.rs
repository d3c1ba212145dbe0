//! Bookings of one instant, and the cells of time in which instants are kept.

use crate::clock::Micros;

/// Permits booked in one cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The latest instant booked in the cell. Earlier bookings of the cell count as booked here, so they leave a
    /// window later than they might, never earlier.
    pub at: Micros,
    /// The number of permits.
    pub permits: u64,
}

/// Returns the width of the cells that keep `permits` in a window of `per` apart as finely as `precision` asks.
pub fn cell_width(per: Micros, permits: u64, precision: u64) -> Micros {
    if permits <= precision { Micros::ONE } else { Micros((per.0 / precision).max(1)) }
}

/// Returns the first instant of the cell that holds `at`.
pub fn cell_start(at: Micros, cell: Micros) -> Micros {
    Micros(at.0 - at.0 % cell.0.max(1))
}

/// Returns the first instant from `at` on at which a cell starts.
pub fn cell_from(at: Micros, cell: Micros) -> Micros {
    cell_start(at + cell - Micros::ONE, cell)
}

/// Returns the permits booked from one instant to another, both included.
pub fn held_between(entries: &[Entry], from: Micros, until: Micros) -> u64 {
    let inside = entries.iter().filter(|entry| from <= entry.at && entry.at <= until);
    inside.map(|entry| entry.permits).sum()
}
