//! Reads the body of a request before its plan is made, because the plan depends on it.
//!
//! The bytes read are held until the request goes upstream, within `server.body_memory`. A request that waits for its body counts among
//! those that wait for permits, and takes none.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Request;
use http_body::{Body as _, Frame};
use tokio::time::{Instant, timeout_at};

use super::admission::while_wanted;
use crate::limiter::WaitingOutside;
use crate::proxy::error::ProxyError;
use crate::proxy::listen::client::Client;
use crate::proxy::messages::body_facts::{BodyFacts, BodyNeed};
use crate::proxy::messages::client_body::ClientBody;
use crate::proxy::messages::end_to_end::EndToEnd;
use crate::proxy::messages::header_flags::HeaderFlags;
use crate::proxy::messages::{coding, request_body};
use crate::proxy::net::body_memory::{BodyMemory, Used};
use crate::proxy::route::table::{Route, Table};

/// The smallest and the largest block in which a body is held.
const BLOCK_MIN: usize = 4 * 1024;
const BLOCK_MAX: usize = 64 * 1024;
/// How often the connection gets a turn to read what has arrived, before the request counts as waiting.
const TURNS_MAX: u8 = 3;

/// Reads what decisions need of a request's body, and puts it back in front of the rest. Returns the facts of the body.
///
/// `route` is the first one that needs it; `since` is the arrival of the request.
pub(crate) async fn read(
    table: &Table,
    (need, route): (BodyNeed, &Arc<Route>),
    (client, since): (&Client, Instant),
    (request, flags): (&mut Request<ClientBody>, HeaderFlags),
) -> Result<BodyFacts, ProxyError> {
    let length = request.body().size_hint().exact();
    if let Some(length) = length.filter(|length| *length > need.bytes_max) {
        return Ok(BodyFacts::unlooked(length));
    }
    let coding = coding::of_request(&EndToEnd::new(request.headers(), flags, false));
    let mut reading = Reading::new(request.body_mut(), need.bytes_max, table.body_memory());
    let end = match arrived(&mut reading).await {
        Some(end) => end?,
        None => {
            let _waiting = wait(route)?;
            let deadline = since + table.server().header_timeout;
            let rest = pin!(async { poll_fn(|context| reading.poll(context)).await });
            let in_time = timeout_at(deadline, while_wanted(client, rest)).await;
            in_time.unwrap_or(Err(ProxyError::RequestTimeout))?
        }
    };
    let (blocks, read) = (std::mem::take(&mut reading.blocks), reading.bytes);
    if end == End::NoMemory && need.is_vital {
        return Err(ProxyError::NoBodyMemory);
    }
    let facts = match end {
        End::Whole => facts(&blocks, &coding, need.bytes_max, table),
        End::TooLarge | End::NoMemory => BodyFacts::unlooked(length.unwrap_or(read)),
    };
    let last = reading.last.take();
    let pieces = blocks.into_iter().map(|block| Frame::data(Bytes::from_owner(block))).chain(last);
    let pieces: VecDeque<_> = pieces.collect();
    request.body_mut().put_back(pieces, end == End::Whole);
    Ok(facts)
}

/// Counts the request among those that wait for the limiters of a route.
fn wait(route: &Route) -> Result<Option<WaitingOutside>, ProxyError> {
    let Some(limiter_set) = &route.limiter_set else { return Ok(None) };
    limiter_set.wait_outside().map(Some).map_err(|refusal| {
        let limiter = limiter_set.limiter(refusal.limiter(), &[]);
        ProxyError::Refused { refusal, limiter, wait: None, class: None }
    })
}

/// Reads as far as the body has arrived. Returns the end, if it is there.
async fn arrived(reading: &mut Reading<'_>) -> Option<Result<End, ProxyError>> {
    let mut turns = 0;
    poll_fn(|context| {
        let before = reading.bytes;
        match reading.poll(context) {
            Poll::Ready(end) => Poll::Ready(Some(end)),
            Poll::Pending if turns == TURNS_MAX => Poll::Ready(None),
            Poll::Pending => {
                turns = if reading.bytes > before { 0 } else { turns + 1 };
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
    })
    .await
}

fn facts(blocks: &VecDeque<Block>, coding: &str, bytes_max: u64, table: &Table) -> BodyFacts {
    // Joined for a moment only.
    let joined: Vec<u8>;
    let body = match blocks.len() {
        0 => &[][..],
        1 => &blocks[0].bytes,
        _ => {
            joined = blocks.iter().map(|block| &*block.bytes).collect::<Vec<_>>().concat();
            &joined
        }
    };
    BodyFacts::of(body, coding, bytes_max, table.body_paths())
}

/// The end of reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// All of the body was read.
    Whole,
    /// There is more than is of use.
    TooLarge,
    /// There is no memory for more.
    NoMemory,
}

/// A body that is being read.
struct Reading<'a> {
    body: &'a mut ClientBody,
    bytes_max: u64,
    memory: &'a BodyMemory,
    blocks: VecDeque<Block>,
    /// The bytes in the blocks.
    bytes: u64,
    /// The piece behind them that found no place, or the trailers.
    last: Option<Frame<Bytes>>,
}

/// Bytes that were read, with the memory that they take.
struct Block {
    bytes: Vec<u8>,
    _used: Used,
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<'a> Reading<'a> {
    fn new(body: &'a mut ClientBody, bytes_max: u64, memory: &'a BodyMemory) -> Reading<'a> {
        Reading { body, bytes_max, memory, blocks: VecDeque::new(), bytes: 0, last: None }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<End, ProxyError>> {
        loop {
            if self.body.is_end_stream() {
                return Poll::Ready(Ok(End::Whole));
            }
            let Some(piece) = ready!(Pin::new(&mut *self.body).poll_frame(context)) else {
                return Poll::Ready(Ok(End::Whole));
            };
            let piece = piece.map_err(|error| broken(&error))?;
            let Some(bytes) = piece.data_ref() else {
                self.last = Some(piece);
                continue;
            };
            let (bytes, is_too_large) = (bytes.clone(), self.bytes + bytes.len() as u64 > self.bytes_max);
            if is_too_large {
                self.last = Some(Frame::data(bytes));
                return Poll::Ready(Ok(End::TooLarge));
            }
            if let Some(rest) = self.push(bytes) {
                self.last = Some(Frame::data(rest));
                return Poll::Ready(Ok(End::NoMemory));
            }
        }
    }

    /// Copies a piece into blocks, because what hyper hands over may hold on to far more memory. Returns what found no place.
    fn push(&mut self, mut piece: Bytes) -> Option<Bytes> {
        while !piece.is_empty() {
            let room = self.blocks.back().map_or(0, |block| block.bytes.capacity() - block.bytes.len());
            if room == 0 {
                let size = self.next_size(piece.len());
                let Some(used) = self.memory.take_now(size) else { return Some(piece) };
                self.blocks.push_back(Block { bytes: Vec::with_capacity(size), _used: used });
                continue;
            }
            let part = piece.split_to(room.min(piece.len()));
            self.bytes += part.len() as u64;
            if let Some(block) = self.blocks.back_mut() {
                block.bytes.extend_from_slice(&part);
            }
        }
        None
    }

    /// Returns the size of the next block, before a piece: as much as the client has announced, or as there is already.
    fn next_size(&self, piece: usize) -> usize {
        let announced = self.body.size_hint().exact().map(|to_come| to_come + piece as u64);
        let size = announced.unwrap_or(self.bytes).min(BLOCK_MAX as u64);
        usize::try_from(size).unwrap_or(BLOCK_MAX).max(BLOCK_MIN)
    }
}

/// Returns the error of a body that went wrong.
fn broken(error: &hyper::Error) -> ProxyError {
    if request_body::is_malformed(error) {
        ProxyError::BadFraming("the body is not framed as HTTP has it")
    } else {
        ProxyError::ClientGone
    }
}
