//! Reads that fail half way.

use super::*;

impl Talk {
    /// Of a structured reply: flags, type and payload.
    fn chunk(&mut self, cookie: u64) -> (u16, u16, Vec<u8>) {
        assert_eq!(self.number(4), 0x668e_33ef, "out of step");
        let (flags, kind) = (self.number(2) as u16, self.number(2) as u16);
        assert_eq!(self.number(8), cookie);
        let len = self.number(4) as usize;
        (flags, kind, self.bytes(len))
    }
}

/// Pieces are under way when a later one fails, and their client is slow to take them.
#[test]
fn a_long_read_that_fails_is_whole_chunks_and_an_error() {
    let running = Running::start(8 << 20);
    let bad = SIZE - BLOCK;
    *running.volume.bad.lock().unwrap() = Some(bad as u64);
    let (_nobody, wait) = std::sync::mpsc::channel::<()>();
    for round in 0..8 {
        let mut talk = running.connect();
        talk.greet();
        assert_eq!(talk.option(8, &[]), [(REP_ACK, vec![])]);
        assert_eq!(talk.option(OPTION_GO, &[0; 6]).last().unwrap().0, REP_ACK);
        talk.request(0, round, 0, SIZE as u32);
        // long enough for the first pieces to fill the socket
        let _ = wait.recv_timeout(Duration::from_millis(100));
        loop {
            let (flags, kind, payload) = talk.chunk(round);
            let offset =
                |at: usize| u64::from_be_bytes(payload[at..at + 8].try_into().unwrap()) as usize;
            match kind {
                1 => {
                    let data = &payload[8..];
                    assert!(*data == running.volume.bytes(offset(0)..offset(0) + data.len()));
                }
                2 => {
                    let len = u32::from_be_bytes(payload[8..12].try_into().unwrap()) as usize;
                    let hole = running.volume.bytes(offset(0)..offset(0) + len);
                    assert!(hole.iter().all(|byte| *byte == 0));
                }
                kind => {
                    assert_eq!((kind, flags), (CHUNK_ERROR | 2, 1));
                    assert_eq!(payload[..4], 5_u32.to_be_bytes());
                    break;
                }
            }
            assert_eq!(flags, 0, "the error is the last chunk");
        }
        talk.request(0, 100, 5, 10);
        let (flags, kind, payload) = talk.chunk(100);
        assert_eq!((flags, kind, &payload[8..]), (1, 1, &running.volume.bytes(5..15)[..]));
    }
}
