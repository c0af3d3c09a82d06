//! Waits that look again.

use std::cell::Cell;
use std::time::{Duration, Instant};

use esker_testkit::waiting::{Pace, until};

#[test]
fn a_true_condition_ends_a_wait_and_pauses_grow() {
    let looks = Cell::new(0);
    let look = |wanted| {
        looks.set(looks.get() + 1);
        looks.get() >= wanted
    };
    assert!(until(Duration::ZERO, || look(1)), "what holds is seen without time");
    looks.set(0);
    assert_eq!(Pace::LOOK.until_some(Duration::from_secs(60), || look(10).then_some("ten")), Some("ten"));
    looks.set(0);
    let began = Instant::now();
    assert!(!until(Duration::from_secs(1), || look(u32::MAX)));
    assert!(began.elapsed() >= Duration::from_secs(1));
    // Eight short pauses, then fifty a second, and the look at the end.
    assert!((2..70).contains(&looks.get()), "{} looks", looks.get());
}
