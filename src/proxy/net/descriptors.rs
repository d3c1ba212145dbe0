//! Keeps some file descriptors free of what clients ask for, so that health, the store and reloads have theirs.
//!
//! The system gives a new descriptor the lowest free number. So a number close to the limit tells that few are left.

use std::os::fd::{AsFd, AsRawFd};

/// The descriptors that clients' connections leave free; connections to upstreams leave half of them. At most an eighth of all.
const RESERVE: u64 = 64;

/// A user of descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    /// A client's connection.
    Client,
    /// A connection to an upstream, for which a client waits already.
    Upstream,
}

/// Returns whether an open descriptor belongs to the last ones, which are not for this user.
pub(crate) fn is_reserved(descriptor: &impl AsRawFd, user: User) -> bool {
    let limit = rlimit::Resource::NOFILE.get().map_or(u64::MAX, |(soft, _)| soft);
    is_beyond(u64::try_from(descriptor.as_raw_fd()).unwrap_or_default(), limit, user)
}

/// Returns whether a new descriptor would be one of the last ones.
pub(crate) fn are_scarce(open: &impl AsFd, user: User) -> bool {
    open.as_fd().try_clone_to_owned().map_or(true, |copy| is_reserved(&copy, user))
}

fn is_beyond(number: u64, limit: u64, user: User) -> bool {
    let reserve = RESERVE.min(limit / 8);
    let kept = if user == User::Client { reserve } else { reserve / 2 };
    number >= limit - kept
}

#[cfg(test)]
mod tests {
    use super::{User, is_beyond};

    #[test]
    fn the_last_numbers_are_reserved() {
        for (number, limit, client, upstream) in [
            (900, 1024, false, false),
            (960, 1024, true, false),
            (992, 1024, true, true),
            (100, 128, false, false),
            (112, 128, true, false),
            (120, 128, true, true),
            (5000, u64::MAX, false, false),
        ] {
            let is = (is_beyond(number, limit, User::Client), is_beyond(number, limit, User::Upstream));
            assert_eq!(is, (client, upstream), "{number} of {limit}");
        }
    }
}
