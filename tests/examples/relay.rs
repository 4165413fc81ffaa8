//! A line with a latency and a rate in front of a server, to try things by hand. `--help` says how.

#![allow(clippy::print_stdout)]

use clap::Parser;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tests::{Relay, RelayOptions};

/// Passes TCP connections on to a server over a line with a latency and a rate, until it is killed.
#[derive(Debug, Parser)]
struct Args {
    /// The server, such as 127.0.0.1:7480
    server: SocketAddr,
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Round trip in milliseconds, half of it each way
    #[arg(long, default_value_t = 30)]
    rtt_ms: u64,
    /// Bytes per second of all connections together, each way; 0 has no limit
    #[arg(long, default_value_t = 125_000_000)]
    rate: u64,
    /// Print what has passed each so many milliseconds, if anything has; 0 does not
    #[arg(long, default_value_t = 0)]
    report_ms: u64,
}

fn main() -> std::io::Result<()> {
    let args = Args::parse();
    let rate = (args.rate > 0).then_some(args.rate);
    let options = RelayOptions::symmetric(args.server, Duration::from_millis(args.rtt_ms), rate);
    let relay = Relay::start(RelayOptions { listen: args.listen, ..options })?;
    println!("{}", relay.address());
    let begun = Instant::now();
    let mut seen = relay.counts();
    loop {
        let wait_ms = if args.report_ms == 0 { 3_600_000 } else { args.report_ms };
        std::thread::park_timeout(Duration::from_millis(wait_ms));
        let c = relay.counts();
        if args.report_ms > 0 && c != seen {
            let at = begun.elapsed().as_millis();
            println!(
                "{at} ms: {} connections, {} up, {} down",
                c.connections, c.up_bytes, c.down_bytes
            );
            seen = c;
        }
    }
}
