//! The stress harness: fires crowds of buyers at a fluxbuy engine, waits until it is quiet, and audits what is left.
//!
//! An outsider: it knows the engine over HTTP, its database over SQL, one documented key of Redis, and the provider's book.
//! This file is the command line, nothing else.

mod audit;
mod bench;
mod faults;
mod load;
mod progress;
mod report;
mod scenarios;
mod world;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use report::{Report, Verdict};
use scenarios::{Run, Scenario, Size};
use world::{Place, Programs, external};

/// Fires crowds of buyers at a fluxbuy engine and audits what is left. The last line on stdout is `audit: ok` or
/// `audit: VIOLATION ...`; the exit status is 0 only when the audit holds.
#[derive(Parser)]
#[command(name = "stress", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run one scenario.
    Run {
        /// Which; `stress list` tells what each does.
        scenario: Scenario,
        #[command(flatten)]
        size: Size,
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        target: external::Args,
    },
    /// Tell the scenarios and what must hold in each.
    List,
    /// Run every scenario that this machine can stage, each with services and an engine of its own.
    All {
        #[command(flatten)]
        size: Size,
        #[command(flatten)]
        common: Common,
    },
    /// Run scenarios again and again, each time with another seed.
    Soak {
        /// Which.
        #[arg(required = true)]
        scenarios: Vec<Scenario>,
        /// How many seeds, counted up from --seed.
        #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
        seeds: u64,
        #[command(flatten)]
        size: Size,
        #[command(flatten)]
        common: Common,
    },
    /// What the engine does on this machine, beside servers that do without its batches. Starts all of it itself; the exit status is
    /// the audit's.
    Bench {
        #[command(flatten)]
        args: bench::Args,
        #[command(flatten)]
        common: Common,
    },
    /// A server that the benchmark holds the engine against.
    #[command(hide = true)]
    Rival(bench::RivalArgs),
}

#[derive(clap::Args)]
struct Common {
    /// Chooses everything that is random; the same seed makes the same plan.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write the results to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    programs: Programs,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let verdict = world::allow_many_sockets()
        .and_then(|()| tokio::runtime::Runtime::new().context("the runtime could not be started"))
        .and_then(|runtime| runtime.block_on(until_interrupted(run(cli.command))));
    let verdict = verdict.unwrap_or_else(|error| {
        eprintln!("stress: {error:#}");
        Verdict::not_run(&error)
    });
    let lines = verdict.to_string();
    if !lines.is_empty() {
        println!("{lines}");
    }
    verdict.exit_code()
}

/// Dropping the run is what stops and removes everything that it started.
async fn until_interrupted(run: impl Future<Output = anyhow::Result<Verdict>>) -> anyhow::Result<Verdict> {
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        verdict = run => verdict,
        _ = tokio::signal::ctrl_c() => anyhow::bail!("interrupted"),
        _ = terminated.recv() => anyhow::bail!("terminated"),
    }
}

async fn run(command: Command) -> anyhow::Result<Verdict> {
    match command {
        Command::List => {
            for scenario in Scenario::ALL {
                println!("{:<15} {}", scenario.name(), scenario.about());
            }
            Ok(Verdict::silent())
        }
        Command::Run {
            scenario,
            size,
            common,
            target,
        } => {
            let place = match target.target()? {
                Some(target) => Place::External(target),
                None => Place::Private(common.programs.clone()),
            };
            let report = one(scenario, size, common.seed, &place).await?;
            write_json(common.json.as_deref(), &report)?;
            Ok(report.verdict())
        }
        Command::All { size, common } => {
            let mut runs = Vec::new();
            for scenario in Scenario::ALL {
                match scenario.what_is_missing() {
                    Some(missing) => eprintln!("{} is left out: {missing}", scenario.name()),
                    None => runs.push((scenario, common.seed)),
                }
            }
            many(&runs, size, &common).await
        }
        Command::Soak {
            scenarios,
            seeds,
            size,
            common,
        } => {
            let runs: Vec<_> = (common.seed..common.seed.saturating_add(seeds))
                .flat_map(|seed| scenarios.iter().map(move |scenario| (*scenario, seed)))
                .collect();
            many(&runs, size, &common).await
        }
        Command::Bench { args, common } => {
            let results = bench::run(&args, common.seed, &Place::Private(common.programs)).await?;
            println!("{results}");
            write_json(common.json.as_deref(), &results)?;
            Ok(results.verdict())
        }
        Command::Rival(args) => bench::run_rival(args).await,
    }
}

async fn one(scenario: Scenario, size: Size, seed: u64, place: &Place) -> anyhow::Result<Report> {
    let run = Run::new(scenario, &size, seed);
    let report = run
        .play(place)
        .await
        .with_context(|| format!("{}, seed {seed}", scenario.name()))?;
    println!("{report}");
    Ok(report)
}

/// Goes on after a violation, and after a run that could not be played to its end, so that one call tells of all.
async fn many(runs: &[(Scenario, u64)], size: Size, common: &Common) -> anyhow::Result<Verdict> {
    let mut verdicts = Vec::with_capacity(runs.len());
    let mut reports = Vec::with_capacity(runs.len());
    for (scenario, seed) in runs {
        let verdict = match one(*scenario, size, *seed, &Place::Private(common.programs.clone())).await {
            Ok(report) => {
                let verdict = report.verdict();
                reports.push(report);
                verdict
            }
            Err(error) => {
                eprintln!("stress: {error:#}");
                Verdict::not_run(&error)
            }
        };
        println!("{}, seed {seed}: {verdict}", scenario.name());
        verdicts.push((format!("{} with seed {seed}", scenario.name()), verdict));
        write_json(common.json.as_deref(), &reports)?;
    }
    Ok(Verdict::of_all(&verdicts))
}

fn write_json(file: Option<&Path>, value: &impl Serialize) -> anyhow::Result<()> {
    let Some(file) = file else { return Ok(()) };
    let mut text = serde_json::to_vec_pretty(value)?;
    text.push(b'\n');
    std::fs::write(file, text).with_context(|| format!("--json: {} can't be written", file.display()))
}
