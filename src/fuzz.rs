//! What comes from outside, as any bytes at all: each target takes some, reads them as the engine would, and panics when something
//! that must hold doesn't. `fuzz/` drives them by coverage (`make fuzz`); the tests in here replay the kept corpus and bend it.
//!
//! Only in builds for tests and for fuzzing.

mod signature;
mod webhook;

/// A name, and what is done with the bytes.
pub type Target = (&'static str, fn(&[u8]));

/// All of them. Each has a program in `fuzz/fuzz_targets/` and a corpus in `fuzz/corpus/`.
pub const TARGETS: [Target; 9] = [
    ("purchase_body", crate::http::fuzz::purchase_body),
    ("listing_body", crate::http::fuzz::listing_body),
    ("refund_body", crate::http::fuzz::refund_body),
    ("page_query", crate::http::fuzz::page_query),
    ("request_head", crate::http::fuzz::request_head),
    ("webhook_signature", signature::any_headers),
    ("mock_event", webhook::mock),
    ("stripe_event", webhook::stripe),
    ("gate_answer", crate::gate::fuzz::answer),
];

/// Gives the bytes to the target of this name.
///
/// # Panics
/// When something doesn't hold, or when there is no such target.
pub fn run(name: &str, data: &[u8]) {
    let (_, target) = TARGETS
        .iter()
        .find(|(known, _)| *known == name)
        .expect("a target of this name");
    target(data);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::path::{Path, PathBuf};
    use std::time::{Duration, Instant};

    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    /// Bounds of a kept corpus: it is read by people, too.
    const MAX_FILES: usize = 30;
    const MAX_FILE_BYTES: usize = 1024;

    /// How long the corpus of each target is bent.
    const BENDING: Duration = Duration::from_secs(3);

    fn folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
    }

    fn names(folder: &Path) -> BTreeSet<String> {
        let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let stem = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
        entries.map(|entry| stem(entry.unwrap().path())).collect()
    }

    fn corpus(target: &str) -> Vec<Vec<u8>> {
        let folder = folder().join("corpus").join(target);
        let mut files: Vec<PathBuf> = fs::read_dir(&folder)
            .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
            .map(|entry| entry.unwrap().path())
            .collect();
        files.sort();
        files.iter().map(|file| fs::read(file).unwrap()).collect()
    }

    #[test]
    fn every_target_has_its_program_and_a_small_corpus() {
        let known: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(names(&folder().join("fuzz_targets")), known);
        assert_eq!(names(&folder().join("corpus")), known);
        for (name, _) in TARGETS {
            let text = fs::read_to_string(folder().join(format!("fuzz_targets/{name}.rs"))).unwrap();
            assert!(
                text.contains(&format!("\"{name}\"")),
                "{name} drives another target"
            );
            let corpus = corpus(name);
            assert!(
                (3..=MAX_FILES).contains(&corpus.len()),
                "{name} has {}",
                corpus.len()
            );
            assert!(corpus.iter().all(|file| file.len() <= MAX_FILE_BYTES), "{name}");
        }
    }

    /// Bytes dropped, doubled, exchanged, taken from a neighbour, or from what such bytes are made of.
    fn bend(rng: &mut StdRng, corpus: &[Vec<u8>]) -> Vec<u8> {
        const PIECES: [&[u8]; 16] = [
            b"\"",
            b"{",
            b"}",
            b",",
            b":",
            b"null",
            b"-1",
            b"1e9",
            b"9223372036854775808",
            b"\\u0000",
            b"\xff",
            b"\n",
            b"@1",
            b"v1=",
            b"0",
            b"[",
        ];
        let mut data = corpus[rng.random_range(0..corpus.len())].clone();
        for _ in 0..rng.random_range(1..5) {
            let at = rng.random_range(0..=data.len());
            let end = rng.random_range(at..=data.len().min(at + 8));
            match rng.random_range(0..5) {
                0 => drop(data.drain(at..end)),
                1 => drop(data.splice(at..at, data[at..end].to_vec())),
                2 => drop(data.splice(at..end, PIECES[rng.random_range(0..PIECES.len())].iter().copied())),
                3 => {
                    let other = &corpus[rng.random_range(0..corpus.len())];
                    let from = rng.random_range(0..=other.len());
                    data.splice(at..end, other[from..].iter().copied());
                }
                _ => drop(data.splice(at..end, [rng.random()])),
            }
        }
        data
    }

    /// A failure says how to have it again.
    fn give(name: &str, data: &[u8]) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(name, data))) {
            eprintln!("{name} failed over b\"{}\"", data.escape_ascii());
            resume_unwind(panic);
        }
    }

    fn replay_and_bend(name: &str) {
        let corpus = corpus(name);
        for data in &corpus {
            give(name, data);
        }
        give(name, b"");
        let mut rng = StdRng::from_rng(&mut rand::rng());
        let end = Instant::now() + BENDING;
        while Instant::now() < end {
            give(name, &bend(&mut rng, &corpus));
        }
    }

    macro_rules! replayed {
        ($($name:ident),+ $(,)?) => {
            $(#[test]
            fn $name() {
                replay_and_bend(stringify!($name));
            })+

            #[test]
            fn every_target_is_replayed() {
                assert_eq!([$(stringify!($name)),+], TARGETS.map(|(name, _)| name));
            }
        };
    }

    replayed!(
        purchase_body,
        listing_body,
        refund_body,
        page_query,
        request_head,
        webhook_signature,
        mock_event,
        stripe_event,
        gate_answer,
    );
}
