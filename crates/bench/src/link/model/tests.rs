use super::*;

const MS: Duration = Duration::from_millis(1);

/// 100 ms there and back, 8 Mb/s: a byte a microsecond.
const SLOW: Profile =
    Profile { name: "slow", round_trip: Duration::from_millis(100), rate: 8_000_000, loss: 0.0 };

/// The same distance with a rate that plays no part.
const WIDE: Profile = Profile { rate: 8_000_000_000_000, ..SLOW };

fn micros(count: u64) -> Duration {
    Duration::from_micros(count)
}

/// Sends `bytes` in one go from `now` on and returns the last arrival.
fn send_all(flow: &mut Flow, bottleneck: &mut Bottleneck, mut now: At, mut bytes: u64) -> At {
    let mut arrival = now;
    while bytes > 0 {
        match flow.room(now, 0) {
            Room::Now(room) => {
                arrival = flow.send(now, bottleneck, room.min(bytes));
                bytes -= room.min(bytes);
            }
            Room::From(later) => {
                assert!(later > now, "time goes on");
                now = later;
            }
            Room::Blocked => panic!("everything is read"),
        }
    }
    arrival
}

#[test]
fn a_small_answer_takes_two_round_trips_on_a_fresh_connection() {
    assert_eq!(forecast(&SLOW, 1, 1000), 200 * MS + micros(1000));
}

/// 10 segments, then 20, 40, …: each round trip doubles the data in flight.
#[test]
fn slow_start_doubles_with_each_round_trip() {
    let rounds = |segments: u64| {
        let time = forecast(&WIDE, 1, segments * SEGMENT).as_secs_f64() / WIDE.round_trip.as_secs_f64();
        time.round() as u64 - 2
    };
    for (segments, expected) in [(10, 0), (11, 1), (30, 1), (31, 2), (70, 2), (71, 3), (150, 3), (151, 4)] {
        assert_eq!(rounds(segments), expected, "{segments} segments");
    }
}

#[test]
fn a_flow_that_was_silent_starts_again() {
    let mut bottleneck = Bottleneck::new(&WIDE);
    let mut flow = Flow::new(&WIDE, At::ZERO, 0);
    let arrival = send_all(&mut flow, &mut bottleneck, At::ZERO, 150 * SEGMENT);
    // All but the last segment is acknowledged; the rest of the window is still large soon after.
    let mut soon = flow.clone();
    let now = arrival + WIDE.round_trip;
    let soon = send_all(&mut soon, &mut bottleneck, now, 40 * SEGMENT);
    assert_eq!((soon - now).as_millis(), 50, "one go");
    let late = arrival + WIDE.round_trip + TIMEOUT_MIN + WIDE.round_trip;
    let again = send_all(&mut flow, &mut bottleneck, late, 40 * SEGMENT);
    assert_eq!((again - late).as_millis(), 250, "10, 20 and 10 segments");
}

#[test]
fn one_bottleneck_serves_all_connections_one_after_the_other() {
    let mut bottleneck = Bottleneck::new(&SLOW);
    let mut flows = [Flow::new(&SLOW, At::ZERO, 0), Flow::new(&SLOW, At::ZERO, 1)];
    let arrivals = flows.each_mut().map(|flow| flow.send(At::ZERO, &mut bottleneck, 10_000));
    assert_eq!(arrivals, [micros(60_000), micros(70_000)]);
    let idle_again = flows[0].send(micros(1_000_000), &mut bottleneck, 1);
    assert_eq!(idle_again, micros(1_050_001));
}

/// The total never exceeds the rate, whatever the number of connections, and a large transfer comes close to it.
#[test]
fn transfers_reach_and_never_exceed_the_rate() {
    let profile = Profile { rate: 280_000_000, ..SLOW };
    let bytes = 2_000_000_000;
    let time = forecast(&profile, 1, bytes).as_secs_f64();
    let best = profile.seconds(bytes);
    assert!(time > best && time < 1.1 * best, "{time} s, {best} s at the full rate");
}

#[test]
fn a_full_queue_is_a_loss() {
    let mut bottleneck = Bottleneck::new(&SLOW);
    let mut first = Flow::new(&SLOW, At::ZERO, 0);
    let mut second = first.clone();
    while !bottleneck.is_full(At::ZERO) {
        first.send(At::ZERO, &mut bottleneck, SEGMENT);
    }
    assert_eq!(first.take_losses(), 0, "there was room");
    let full = bottleneck.free;
    let arrival = second.send(At::ZERO, &mut bottleneck, SEGMENT);
    assert_eq!(arrival, full + micros(SEGMENT) + 3 * SLOW.one_way());
    assert_eq!(second.window.size, 7 * SEGMENT);
    // Another one before that is repaired is part of the same.
    second.send(MS, &mut bottleneck, SEGMENT);
    assert_eq!((second.take_losses(), second.window.size), (1, 7 * SEGMENT));
}

#[test]
fn a_lost_segment_arrives_a_round_trip_later_and_delays_later_segments() {
    let lossy = Profile { loss: 1.0, ..WIDE };
    let mut bottleneck = Bottleneck::new(&lossy);
    let mut flow = Flow::new(&lossy, At::ZERO, 0);
    assert_eq!(flow.send(At::ZERO, &mut bottleneck, SEGMENT).as_millis(), 150);
    flow.loss = 0.0;
    assert_eq!(flow.send(MS, &mut bottleneck, SEGMENT).as_millis(), 150, "in order");
    assert_eq!(flow.take_losses(), 1);
    assert_eq!(flow.end(2 * MS).as_millis(), 150, "the end doesn't overtake either");
}

#[test]
fn segments_are_lost_at_the_rate_of_the_profile() {
    let lossy = Profile { loss: 1e-3, ..WIDE };
    let mut bottleneck = Bottleneck::new(&lossy);
    let mut flow = Flow::new(&lossy, At::ZERO, 7);
    let mut now = At::ZERO;
    for _ in 0..10_000 {
        let arrival = flow.send(now, &mut bottleneck, 10 * SEGMENT);
        now = arrival + lossy.round_trip;
    }
    let lost = flow.take_losses();
    assert!((80..=120).contains(&lost), "{lost} of 100,000");
}

/// After a loss the window grows back along CUBIC's curve: slowly up to its old size, faster beyond it.
#[test]
fn windows_grow_back_after_a_loss() {
    let mut window = Window::new(Duration::from_millis(100));
    window.size = 1000 * SEGMENT;
    window.shrink();
    assert_eq!(window.size, 700 * SEGMENT);
    // The cube root of 1000 × 0.3 / 0.4 is 9.09 seconds.
    let sizes = [0, 5, 9, 18].map(|seconds| {
        window.grow(Duration::from_secs(seconds), SEGMENT);
        window.size / SEGMENT
    });
    assert_eq!(sizes, [700, 972, 999, 1283]);
    // A tenth of a second is a hundred short round trips.
    let mut window = Window::new(MS);
    window.shrink();
    window.grow(At::ZERO, SEGMENT);
    window.grow(100 * MS, SEGMENT);
    assert_eq!(window.size / SEGMENT, 7 + 52);
}

/// Many connections use the whole rate, although each of them loses segments.
#[test]
fn connections_at_once_reach_the_rate() {
    for profile in Profile::ALL {
        // Ten seconds at the full rate: slow start is a small part.
        let bytes = profile.rate * 10 / 8 / 8;
        let time = forecast(&profile, 8, bytes) - 2 * profile.round_trip;
        let ratio = time.as_secs_f64() / profile.seconds(8 * bytes);
        assert!((1.0..1.25).contains(&ratio), "{profile}: {ratio} times as long");
    }
}

#[test]
fn a_receiver_that_does_not_read_stops_the_sender() {
    let mut flow = Flow::new(&WIDE, At::ZERO, 0);
    assert_eq!(flow.room(At::ZERO, WINDOW_RECEIVER), Room::Blocked);
    assert_eq!(flow.room(At::ZERO, WINDOW_RECEIVER - 5), Room::Now(5));
}

#[test]
fn nothing_is_sent_before_the_handshake() {
    let mut flow = Flow::new(&WIDE, 7 * MS, 0);
    assert_eq!(flow.room(At::ZERO, 0), Room::From(7 * MS));
    assert_eq!(flow.room(7 * MS, 0), Room::Now(WINDOW_INITIAL));
}
