//! Reads more of a stream at once than its reader has room for, while more keeps coming.
//!
//! h2 reads into what is left of a buffer as large as one frame, which takes three reads for a frame of an upload. Holds bytes only until
//! its reader has taken them, and h2 takes all that comes, so an idle connection holds none.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};
use tokio_util::io::poll_read_buf;

use super::stream::READ_MAX;

/// The bytes read ahead of a stream.
#[derive(Default)]
pub(crate) struct ReadAhead {
    bytes: BytesMut,
    /// True if the last read left bytes behind.
    is_behind: bool,
}

impl ReadAhead {
    /// Returns a reader of `stream`, which must be the same one each time.
    pub(crate) fn of<'a, S>(&'a mut self, stream: &'a mut S) -> Reading<'a, S> {
        Reading { ahead: self, stream }
    }
}

/// A reader of a stream by way of a [`ReadAhead`].
pub(crate) struct Reading<'a, S> {
    ahead: &'a mut ReadAhead,
    stream: &'a mut S,
}

impl<S: AsyncRead + Unpin> AsyncRead for Reading<'_, S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let Reading { ahead, stream } = &mut *self;
        if ahead.bytes.is_empty() {
            let stream = Pin::new(&mut **stream);
            if !std::mem::take(&mut ahead.is_behind) {
                ready!(stream.poll_read(context, buffer))?;
                ahead.is_behind = buffer.remaining() == 0;
                return Poll::Ready(Ok(()));
            }
            let mut bytes = BytesMut::with_capacity(READ_MAX);
            let count = ready!(poll_read_buf(stream, context, &mut bytes))?;
            ahead.is_behind = count > buffer.remaining();
            ahead.bytes = bytes;
        }
        let count = ahead.bytes.len().min(buffer.remaining());
        buffer.put_slice(ahead.bytes.get(..count).unwrap_or_default());
        ahead.bytes.advance(count);
        if ahead.bytes.is_empty() {
            ahead.bytes = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    /// Counts its reads.
    struct Counted<'a>(&'a [u8], usize);

    impl AsyncRead for Counted<'_> {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<std::io::Result<()>> {
            self.1 += 1;
            Pin::new(&mut self.0).poll_read(context, buffer)
        }
    }

    #[tokio::test]
    async fn a_reader_with_little_room_gets_every_byte_in_few_reads() {
        let sent: Vec<u8> = (0..100_000u32).map(|number| (number % 251) as u8).collect();
        let (mut stream, mut ahead) = (Counted(&sent, 0), ReadAhead::default());
        let (mut read, mut buffer) = (Vec::new(), [0; 700]);
        loop {
            let count = ahead.of(&mut stream).read(&mut buffer).await.unwrap();
            if count == 0 {
                break;
            }
            read.extend_from_slice(&buffer[..count]);
        }
        assert!(read == sent);
        assert!(stream.1 <= 10, "{} reads", stream.1);
        assert_eq!(ahead.bytes.capacity(), 0, "nothing is kept");
    }
}
