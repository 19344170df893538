//! The demo as people run it: it ends well when everything adds up, and nothing of it is left, however it ends.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

/// How long anything may take. Generous: it only bounds a failure.
const PATIENCE: Duration = Duration::from_mins(2);

struct Demo {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    /// Everything it puts on disk, and what its processes are known by.
    folder: TempDir,
    said: String,
}

impl Demo {
    fn start(args: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_fluxbuy"))
            .arg("demo")
            .args(args)
            .env("TMPDIR", folder.path())
            // The settings of some other engine.
            .env("FLUXBUY__SALE__MAX_BATCH", "nonsense")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self {
            child,
            lines,
            folder,
            said: String::new(),
        }
    }

    /// Reads on until a line holds `word`, and gives that line.
    async fn line_with(&mut self, word: &str) -> String {
        loop {
            let line = tokio::time::timeout(PATIENCE, self.lines.next_line())
                .await
                .unwrap_or_else(|_| panic!("{word:?} never came:\n{}", self.said))
                .unwrap();
            let line = line.unwrap_or_else(|| panic!("it ended without {word:?}:\n{}", self.said));
            self.said.push_str(&line);
            self.said.push('\n');
            if line.contains(word) {
                return line;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().unwrap() as i32), signal).unwrap();
    }

    async fn ends_well(&mut self) -> bool {
        tokio::time::timeout(PATIENCE, self.child.wait())
            .await
            .expect("it ends")
            .unwrap()
            .success()
    }

    fn processes(&self) -> Vec<String> {
        let folder = self.folder.path().to_str().unwrap();
        processes(folder)
    }

    fn files(&self) -> usize {
        std::fs::read_dir(self.folder.path()).unwrap().count()
    }

    fn nothing_is_left(&self) {
        assert_eq!(self.processes(), Vec::<String>::new());
        assert_eq!(self.files(), 0);
    }
}

/// Processes with this word in their command line or environment. (PostgreSQL writes its title over its environment.)
fn processes(word: &str) -> Vec<String> {
    let holds =
        |file: &Path| std::fs::read(file).is_ok_and(|found| String::from_utf8_lossy(&found).contains(word));
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|process| holds(&process.join("environ")) || holds(&process.join("cmdline")))
        .map(|process| {
            let command = std::fs::read_to_string(process.join("cmdline")).unwrap_or_default();
            command.replace('\0', " ")
        })
        .filter(|command| !command.is_empty())
        .collect()
}

#[tokio::test]
async fn every_unit_and_every_cent_is_accounted_for() {
    let mut demo = Demo::start(&["--units", "30", "--buyers", "50"]);
    let answers = demo.line_with("have their answer").await;
    assert!(answers.contains("sold out"), "{answers}");
    demo.line_with("audit: ok").await;
    assert!(demo.ends_well().await);
    for words in ["units: ", " = 30", "money: ", "claims lost", "p99"] {
        assert!(demo.said.contains(words), "{words:?} isn't in\n{}", demo.said);
    }
    demo.nothing_is_left();
}

#[tokio::test]
async fn an_interrupt_in_the_middle_leaves_nothing() {
    let mut demo = Demo::start(&["--units", "30", "--buyers", "30"]);
    demo.line_with("have their answer").await;
    assert!(!demo.processes().is_empty(), "they can be found");
    demo.signal(Signal::SIGINT);
    assert!(!demo.ends_well().await, "it wasn't played to the end");
    demo.nothing_is_left();
}

#[tokio::test]
async fn a_demo_that_is_killed_leaves_nothing() {
    let mut demo = Demo::start(&["--units", "30", "--buyers", "30"]);
    demo.line_with("have their answer").await;
    demo.child.kill().await.unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !demo.processes().is_empty() || demo.files() > 0 {
        assert!(Instant::now() < deadline, "still there: {:?}", demo.processes());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn keep_leaves_it_running_until_it_is_interrupted() {
    let mut demo = Demo::start(&["--units", "5", "--buyers", "5", "--keep"]);
    let engine = demo.line_with("engine     http://").await;
    let address = engine.rsplit("http://").next().unwrap().to_owned();
    demo.line_with("until Ctrl-C").await;
    tokio::net::TcpStream::connect(&address)
        .await
        .expect("the engine is still there");
    demo.signal(Signal::SIGINT);
    assert!(demo.ends_well().await, "the audit had ended well:\n{}", demo.said);
    demo.nothing_is_left();
}
