//! Changes that are noticed, and those that are not.

use std::future::Future;

use super::*;

const PATIENCE: Duration = Duration::from_secs(10);

async fn noticed(watch: &mut Watch) {
    timeout(PATIENCE, watch.changed()).await.expect("the change was not noticed");
}

/// Checks that no change is noticed for some time, and then runs `then`.
async fn unnoticed<F: Future<Output = ()>>(watch: &mut Watch, time: Duration, then: F) {
    assert!(timeout(time, watch.changed()).await.is_err(), "noticed a change without changed content");
    then.await;
}

fn directory() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.yaml");
    fs::write(&path, "a: 1\n").unwrap();
    (directory, path)
}

#[tokio::test]
async fn a_write_is_noticed() {
    let (_directory, path) = directory();
    let mut watch = Watch::new(&path);
    fs::write(&path, "a: 2\n").unwrap();
    noticed(&mut watch).await;
    fs::write(&path, "a: 3\n").unwrap();
    noticed(&mut watch).await;
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn only_what_can_be_a_new_configuration_wakes_weir() {
    use std::io::Write;

    let (directory, path) = directory();
    let mut watch = Watch::new(&path);
    let woken = async |watch: &mut Watch| timeout(QUIET / 2, watch.events_come()).await.is_ok();
    // A log that stays open, as weir's own does.
    let mut log = File::create(directory.path().join("weir.log")).unwrap();
    assert!(woken(&mut watch).await, "a new name may be that of a link on the way to a file that was read");
    for _ in 0..100 {
        log.write_all(b"a line\n").unwrap();
    }
    log.sync_all().unwrap();
    read(&path).unwrap();
    assert!(!woken(&mut watch).await);
    drop(log);
    assert!(!woken(&mut watch).await, "no other file that is closed");
    let mut file = File::create(&path).unwrap();
    file.write_all(b"a: 2\n").unwrap();
    assert!(!woken(&mut watch).await, "the file is not complete yet");
    drop(file);
    assert!(woken(&mut watch).await);
}

#[tokio::test]
async fn a_directory_that_was_replaced_is_followed() {
    let (directory, _) = directory();
    let inner = directory.path().join("inner");
    let path = inner.join("weir.yaml");
    fs::create_dir(&inner).unwrap();
    fs::write(&path, "a: 1\n").unwrap();
    fs::write(directory.path().join("weir.yaml"), format!("a: ${{file:{}}}\n", path.display())).unwrap();
    let mut watch = Watch::new(&directory.path().join("weir.yaml"));
    for content in ["a: 2\n", "a: 3\n"] {
        fs::rename(&inner, directory.path().join(content.trim())).unwrap();
        fs::create_dir(&inner).unwrap();
        fs::write(&path, content).unwrap();
        noticed(&mut watch).await;
    }
    fs::write(&path, "a: 4\n").unwrap();
    noticed(&mut watch).await;
}

#[tokio::test]
async fn a_rename_over_the_file_is_noticed() {
    let (directory, path) = directory();
    let mut watch = Watch::new(&path);
    for content in ["a: 2\n", "a: 3\n"] {
        let new = directory.path().join("new");
        fs::write(&new, content).unwrap();
        fs::rename(&new, &path).unwrap();
        noticed(&mut watch).await;
    }
}

#[tokio::test]
async fn equal_content_is_no_change() {
    let (_directory, path) = directory();
    let mut watch = Watch::new(&path);
    fs::write(&path, "a: 1\n").unwrap();
    unnoticed(&mut watch, 5 * QUIET, async {}).await;
    fs::write(&path, "a: 2\n").unwrap();
    noticed(&mut watch).await;
}

#[tokio::test]
async fn files_named_in_the_configuration_are_followed() {
    let (directory, path) = directory();
    let secrets = directory.path().join("secrets");
    fs::create_dir(&secrets).unwrap();
    fs::write(&path, "a: ${file:secrets/token}\n").unwrap();
    let mut watch = Watch::new(&path);
    fs::write(secrets.join("token"), "one").unwrap();
    noticed(&mut watch).await;
    fs::write(secrets.join("token"), "two").unwrap();
    noticed(&mut watch).await;
}

#[tokio::test]
#[cfg(unix)]
async fn the_symlink_swap_of_a_config_map_is_noticed() {
    use std::os::unix::fs::symlink;

    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::create_dir(at("..1")).unwrap();
    fs::write(at("..1").join("weir.yaml"), "a: 1\n").unwrap();
    symlink("..1", at("..data")).unwrap();
    symlink("..data/weir.yaml", at("weir.yaml")).unwrap();
    let mut watch = Watch::new(&at("weir.yaml"));
    for generation in 2..4 {
        let new = format!("..{generation}");
        fs::create_dir(at(&new)).unwrap();
        fs::write(at(&new).join("weir.yaml"), format!("a: {generation}\n")).unwrap();
        symlink(&new, at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
        fs::remove_dir_all(at(&format!("..{}", generation - 1))).unwrap();
        noticed(&mut watch).await;
    }
}

#[tokio::test]
#[cfg(unix)]
async fn a_swapped_link_to_a_directory_is_noticed() {
    use std::os::unix::fs::symlink;

    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::create_dir(at("releases")).unwrap();
    let release = |number: u32| {
        fs::create_dir(at(&format!("releases/{number}"))).unwrap();
        fs::write(at(&format!("releases/{number}/weir.yaml")), format!("a: {number}\n")).unwrap();
    };
    release(1);
    // By a link to a link, which is the one that changes.
    symlink("releases/1", at("current")).unwrap();
    fs::create_dir(at("etc")).unwrap();
    symlink("../current", at("etc/weir")).unwrap();
    let mut watch = Watch::new(&at("etc/weir/weir.yaml"));
    for number in 2..4 {
        release(number);
        symlink(format!("releases/{number}"), at("next")).unwrap();
        fs::rename(at("next"), at("current")).unwrap();
        noticed(&mut watch).await;
    }
    // Links in a circle end.
    symlink("b", at("a")).unwrap();
    symlink("a", at("b")).unwrap();
    assert!(directories_of(&at("a/weir.yaml")).len() <= 2 + LINKS_MAX);
}

#[tokio::test]
async fn certificates_are_followed_whose_paths_hold_variables() {
    let (directory, path) = directory();
    let certificate = directory.path().join("tls.crt");
    fs::write(&certificate, "one").unwrap();
    fs::write(directory.path().join("name"), "tls").unwrap();
    fs::write(&path, "server: {tls: {cert: '${WEIR_IS_NOT_SET:-./}${file:name}.crt'}}\n").unwrap();
    let mut watch = Watch::new(&path);
    fs::write(&certificate, "two").unwrap();
    noticed(&mut watch).await;
}

#[tokio::test]
async fn a_file_that_is_being_written_is_no_new_content_yet() {
    let (_directory, path) = directory();
    let mut watch = Watch::new(&path);
    // As on a network mount: no event, and a poll that comes in the middle.
    watch.directories = None;
    watch.pending = Some(Woken::Poll);
    let writing = async {
        for text in ["a: 2\n", "a: 2\nb: 3\n", "a: 2\nb: 3\nc: 4\n"] {
            fs::write(&path, text).unwrap();
            sleep(QUIET_POLLED / 2).await;
        }
    };
    let (noticed, ()) = tokio::join!(timeout(PATIENCE, watch.changed()), writing);
    noticed.expect("noticed in the end");
    assert_eq!(watch.content, Snapshot::take(&path).content, "nothing is left to be noticed");
}

#[tokio::test]
#[cfg(unix)]
async fn a_pipe_is_left_to_who_loads_it() {
    use std::io::Write;
    use std::os::fd::AsRawFd;

    let (reader, mut writer) = io::pipe().unwrap();
    writer.write_all(b"a: 1\n").unwrap();
    drop(writer);
    let path = format!("/dev/fd/{}", reader.as_raw_fd());
    let _watch = Watch::new(Path::new(&path));
    let mut text = String::new();
    File::open(&path).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "a: 1\n");
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn a_pipe_that_a_value_names_is_left_to_who_loads_it() {
    use std::io::Write;
    use std::os::fd::AsRawFd;

    let (_directory, path) = directory();
    let (reader, mut writer) = io::pipe().unwrap();
    writer.write_all(b"s3cret\n").unwrap();
    drop(writer);
    let pipe = format!("/dev/fd/{}", reader.as_raw_fd());
    fs::write(&path, format!("a: \"${{file:{pipe}}}\"\n")).unwrap();
    let _watch = Watch::new(&path);
    let mut text = String::new();
    File::open(&pipe).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "s3cret\n");
}

#[tokio::test]
async fn cancelling_loses_no_change() {
    let (_directory, path) = directory();
    let mut watch = Watch::new(&path);
    fs::write(&path, "a: 2\n").unwrap();
    let deadline = Instant::now() + PATIENCE;
    // Far less than the time to settle: each try is cancelled in the middle.
    while timeout(QUIET / 20, watch.changed()).await.is_err() {
        if watch.pending.is_some() {
            break;
        }
        assert!(Instant::now() < deadline);
    }
    noticed(&mut watch).await;
}

/// A mount that hangs would hold a thread for each wait.
#[tokio::test]
async fn a_cancelled_wait_leaves_its_reading_to_the_next_one() {
    let (_directory, path) = directory();
    let mut watch = Watch::new(&path);
    let (set_free, hangs) = std::sync::mpsc::channel::<()>();
    let stale = move || {
        let _ = hangs.recv();
        Snapshot { content: [1; 32], files: Vec::new() }
    };
    watch.reading = Some(spawn_blocking(stale));
    fs::write(&path, "a: 2\n").unwrap();
    unnoticed(&mut watch, 5 * QUIET, async {}).await;
    unnoticed(&mut watch, 5 * QUIET, async {}).await;
    drop(set_free);
    noticed(&mut watch).await;
    assert_eq!(watch.content, Snapshot::take(&path).content, "it was read again");
}

#[tokio::test]
async fn without_a_watcher_changes_are_found_by_polling() {
    let (_directory, path) = directory();
    let mut watch = Watch::new(&path);
    watch.directories = None;
    fs::write(&path, "a: 2\n").unwrap();
    noticed(&mut watch).await;
}
