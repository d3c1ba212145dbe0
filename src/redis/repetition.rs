//! A call that is made once more where its answer does not come, and for how long that is safe. Knows nothing of what is called.

use std::time::Duration;

use futures_util::future::{BoxFuture, Fuse, FusedFuture, FutureExt, TryFutureExt, select_ok};
use tokio::time::{Instant, timeout};

use crate::limiter::store::StoreError;

/// For how long after it was first made a call may be repeated. The script remembers it for longer ([`CALL_KEPT`]), if others call for its
/// queue: what is left is for the way of the repetition. One that came later would book anew.
///
/// [`CALL_KEPT`]: crate::limiter::model::CALL_KEPT
const REPEAT_WITHIN: Duration = Duration::from_millis(750);
/// How long a call waits for its answer before it is repeated over another connection, where its deadline is not earlier.
const REPEAT_AFTER: Duration = Duration::from_millis(500);

/// When a call was first made, and whether it is made once more.
#[derive(Clone, Copy)]
pub(super) struct Turn {
    begun: Instant,
    is_repeated: bool,
}

impl Turn {
    /// Begins a call.
    pub(super) fn first() -> Turn {
        Turn { begun: Instant::now(), is_repeated: false }
    }

    /// Returns the turn of the call's repetition.
    pub(super) fn again(self) -> Turn {
        Turn { is_repeated: true, ..self }
    }

    /// Returns whether the call may be made once more.
    pub(super) fn may_be_repeated(self) -> bool {
        !self.is_repeated && !self.again().is_too_late()
    }

    /// Returns whether the call must not be sent any more: the script may have forgotten that it has carried it out.
    pub(super) fn is_too_late(self) -> bool {
        self.is_repeated && self.begun.elapsed() > REPEAT_WITHIN
    }

    /// Returns the error of a call that is not sent any more.
    pub(super) fn too_late() -> StoreError {
        StoreError::Timeout(REPEAT_WITHIN)
    }
}

/// An answer, and whether the repetition got it.
type Heard<T> = (T, bool);

type UnderWay<T> = Fuse<BoxFuture<'static, Result<T, StoreError>>>;

/// A call under way, and its repetition, which begins when it is first waited for.
pub(super) struct RepeatedCall<T> {
    first: UnderWay<T>,
    second: UnderWay<T>,
    /// The second's answer, which did not count in time.
    kept: Option<T>,
}

impl<T: Send + 'static> RepeatedCall<T> {
    pub(super) fn new(
        first: impl Future<Output = Result<T, StoreError>> + Send + 'static,
        second: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> RepeatedCall<T> {
        RepeatedCall { first: first.boxed().fuse(), second: second.boxed().fuse(), kept: None }
    }

    /// Waits for the answer. The second's is kept for later unless it `counts`.
    pub(super) async fn in_time(&mut self, counts: bool) -> Result<Heard<T>, StoreError> {
        if let Ok(answer) = timeout(REPEAT_AFTER, &mut self.first).await {
            return Ok((answer?, false));
        }
        loop {
            tokio::select! {
                biased;
                answer = &mut self.first => return Ok((answer?, false)),
                answer = &mut self.second => match answer {
                    Ok(answer) if counts => return Ok((answer, true)),
                    Ok(answer) => self.kept = Some(answer),
                    // The first may still be answered.
                    Err(_) => {}
                }
            }
        }
    }

    /// Waits for whichever answer comes.
    ///
    /// # Errors
    /// The last failure, where neither call has an answer.
    pub(super) async fn late(self) -> Result<Heard<T>, StoreError> {
        match self.kept {
            Some(answer) => Ok((answer, true)),
            None => {
                let calls = [(self.first, false), (self.second, true)].into_iter();
                // One that has failed in time has no answer any more.
                let open = calls.filter(|(call, _)| !call.is_terminated());
                let open: Vec<_> = open
                    .map(|(call, is_second)| call.map_ok(move |answer| (answer, is_second)).boxed())
                    .collect();
                if open.is_empty() {
                    return Err(StoreError::Away);
                }
                Ok(select_ok(open).await?.0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_call_is_repeated_while_the_script_remembers_it() {
        let turn = Turn::first();
        sleep(REPEAT_WITHIN).await;
        assert!(turn.may_be_repeated() && !turn.again().is_too_late());
        assert!(!turn.again().may_be_repeated(), "once");
        sleep(Duration::from_millis(1)).await;
        assert!(!turn.may_be_repeated() && turn.again().is_too_late() && !turn.is_too_late());
        assert!(
            REPEAT_AFTER < REPEAT_WITHIN && REPEAT_WITHIN < crate::limiter::model::CALL_KEPT.to_duration()
        );
    }

    async fn after(time: Duration, answer: u8) -> Result<u8, StoreError> {
        sleep(time).await;
        Ok(answer)
    }

    #[tokio::test(start_paused = true)]
    async fn the_second_call_begins_behind_half_a_second_and_counts_where_it_is_confirmed() {
        let (short, long) = (Duration::from_millis(10), Duration::from_secs(9));
        let begun = Instant::now();
        let mut calls = RepeatedCall::new(after(REPEAT_AFTER - short, 1), pending());
        assert_eq!(calls.in_time(true).await.unwrap(), (1, false));
        let begun_second = Instant::now();
        let mut calls = RepeatedCall::new(after(long, 1), after(short, 2));
        assert_eq!(calls.in_time(true).await.unwrap(), (2, true));
        assert_eq!(begun_second.elapsed(), REPEAT_AFTER + short);
        let mut calls = RepeatedCall::new(after(long, 1), after(short, 2));
        assert!(timeout(long / 2, calls.in_time(false)).await.is_err(), "nobody has confirmed it");
        assert_eq!(calls.late().await.unwrap(), (2, true));
        let mut calls = RepeatedCall::new(after(long, 1), ready(Err(StoreError::Away)));
        assert_eq!(calls.in_time(true).await.unwrap(), (1, false), "the second fails");
        assert!(begun.elapsed() < 4 * long);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_waited_for_behind_two_failures() {
        let first = async {
            sleep(REPEAT_AFTER * 2).await;
            Err::<u8, _>(StoreError::Away)
        };
        let mut calls = RepeatedCall::new(first, ready(Err(StoreError::Away)));
        assert!(calls.in_time(true).await.is_err());
        assert!(calls.late().await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_with_an_early_deadline_is_repeated_behind_it() {
        let mut calls = RepeatedCall::new(pending(), after(Duration::ZERO, 2));
        assert!(timeout(REPEAT_AFTER / 5, calls.in_time(true)).await.is_err());
        let begun = Instant::now();
        assert_eq!(calls.late().await.unwrap(), (2, true));
        assert!(begun.elapsed() < REPEAT_AFTER / 5);
    }
}
