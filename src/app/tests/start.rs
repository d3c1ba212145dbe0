//! The first reading of the configuration, from files that hang.

use std::fs;
use std::thread;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::app::first_reading;

const CONFIG: &str = "routes: [{name: one, match: {path: /}, upstream: \"http://127.0.0.1:9\"}]";

#[tokio::test]
async fn a_configuration_that_hangs_is_told_after_a_while() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.yaml");
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let Err(error) = first_reading(&path, Duration::from_millis(50)).await else { panic!("a pipe") };
    let told = error.to_string();
    assert!(told.contains("weir.yaml") && told.contains("took longer than 50ms"), "{told}");
    // The runtime of the test waits for the thread that opens the pipe.
    fs::write(&path, "").unwrap();
}

#[tokio::test]
async fn a_configuration_may_be_a_pipe_that_is_written_later() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.yaml");
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    // Opening the pipe waits for its reader.
    let writing = thread::spawn({
        let path = path.clone();
        move || fs::write(path, CONFIG)
    });
    let (_watch, loaded) = first_reading(&path, Duration::from_secs(20)).await.unwrap();
    assert_eq!(loaded.config.routes.len(), 1);
    writing.join().unwrap().unwrap();
}
