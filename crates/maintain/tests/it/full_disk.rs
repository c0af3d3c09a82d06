//! A collect on a disk without a free byte.

use std::fs;
use std::path::{Path, PathBuf};

use esker_format::time::UnixTime;
use esker_maintain::{Collect, CollectError, Keep};
use esker_testkit::disk::Tmpfs;
use esker_testkit::skip;

use crate::collecting::at_once;
use crate::workshop::{Workshop, now, objects, publish_at};

const DAY: i64 = 86_400;
const DISK: u64 = 48 << 20;
const FILES: usize = 1000;

/// Returns a repository on the disk, with three revisions of which only the last one has a tag.
fn published(disk: &Path) -> Workshop {
    let workshop = Workshop::with(|new| new.settings.automatic_tags = false).moved(disk);
    for revision in 0..4_i64 {
        for number in 0..FILES {
            fs::write(workshop.source().join(number.to_string()), format!("{revision} {number}")).unwrap();
        }
        let time = UnixTime(now().0 - (3 - revision) * DAY);
        publish_at(time, &workshop.open(), &workshop.source(), "").unwrap();
    }
    workshop
}

fn reserve(workshop: &Workshop) -> PathBuf {
    workshop.root().join(".esker/reserve")
}

#[test]
fn a_collect_frees_space_on_a_disk_without_a_free_byte() {
    let place = tempfile::tempdir().unwrap();
    let Some(disk) = Tmpfs::mount(&place.path().join("disk"), DISK) else {
        skip!("only root mounts a small disk");
    };
    let workshop = published(&place.path().join("disk"));
    assert!(fs::metadata(reserve(&workshop)).unwrap().len() > 1 << 20);
    disk.fill();
    let before = objects(&workshop.root()).len();
    let mut small = at_once(Keep::Tags);
    // The marks are sorted in more runs than the disk has room for.
    small.buffer = 64;
    let done = small.run(&workshop.open(), now()).unwrap();
    assert!(done.deleted.objects as usize >= FILES, "{:?}", done.deleted);
    assert!(objects(&workshop.root()).len() <= before - FILES);
    disk.empty();
    workshop.assert_equal();
    small.run(&workshop.open(), now()).unwrap();
    assert!(reserve(&workshop).exists(), "space is set aside again");
}

#[test]
fn without_a_reserve_what_can_be_made_again_makes_room() {
    let place = tempfile::tempdir().unwrap();
    let Some(disk) = Tmpfs::mount(&place.path().join("disk"), DISK) else {
        skip!("only root mounts a small disk");
    };
    let workshop = published(&place.path().join("disk"));
    let plan = at_once(Keep::Tags).dry_run(&workshop.open(), now()).unwrap();
    fs::remove_file(reserve(&workshop)).unwrap();
    disk.fill();
    let done = at_once(Keep::Tags).run(&workshop.open(), now()).unwrap();
    assert_eq!(done.deleted.objects, plan.objects);
    disk.empty();
    workshop.assert_equal();
    // Without a byte to give up, the failure is that of the disk.
    let second = place.path().join("disk/second");
    fs::create_dir(&second).unwrap();
    let workshop = published(&second);
    fs::remove_file(reserve(&workshop)).unwrap();
    disk.fill();
    let failed = Collect { grace: 0, ..at_once(Keep::Tags) }.run(&workshop.open(), now()).unwrap_err();
    assert!(matches!(&failed, CollectError::Repository(error) if error.is_full()), "{failed:?}");
}
