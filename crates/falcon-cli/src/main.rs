//! The `falcon` program.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use falcon_cli::args::{Cli, Command};
use falcon_cli::bench::BenchOutcome;
use falcon_cli::{
    bench, convert, eval, export, generate, interrupt, memory, report, reproduce, scan, tokenizer, train,
};
use falcon_lm::train::Outcome;

/// The exit code for bad input or output that cannot be written. Clap uses the same for bad arguments.
const FAILURE: u8 = 2;
/// The exit code if `falcon bench --check` finds a speed that fell.
const FELL: u8 = 1;

fn main() -> ExitCode {
    memory::keep_freed();
    interrupt::report_file_size_limit();
    match Cli::parse().command {
        Command::Reproduce(args) => code(reproduce::run(&args)),
        Command::Train(args) => code(train::run(&args)),
        Command::Eval(args) => code(eval::run(&args)),
        Command::Generate(args) => code(generate::run(&args)),
        Command::Tokenizer(args) => code(tokenizer::run(&args).map(|()| Outcome::Finished)),
        Command::Convert(args) => code(convert::run(&args).map(|()| Outcome::Finished)),
        Command::Export(args) => code(export::run(&args).map(|()| Outcome::Finished)),
        Command::Report(args) => code(report::run(&args).map(|()| Outcome::Finished)),
        Command::Bench(args) => match bench::run(&args) {
            Ok(BenchOutcome::Finished) => ExitCode::SUCCESS,
            Ok(BenchOutcome::Fell) => ExitCode::from(FELL),
            Err(error) => fail(error),
        },
        Command::Scan(args) => code(scan::run(&args).map(|()| Outcome::Finished)),
        Command::Completions(args) => {
            let mut script = Vec::new();
            clap_complete::generate(args.shell, &mut Cli::command(), "falcon", &mut script);
            match io::stdout().write_all(&script) {
                // The reader of stdout has seen enough.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
                Err(error) => fail(format_args!("stdout: {error}")),
                Ok(()) => ExitCode::SUCCESS,
            }
        }
    }
}

/// The exit code of a command; prints its error, if there is one.
fn code(result: Result<Outcome, impl Display>) -> ExitCode {
    match result {
        Ok(Outcome::Finished) => ExitCode::SUCCESS,
        Ok(Outcome::Interrupted) => ExitCode::from(interrupt::exit_code()),
        Err(error) => fail(error),
    }
}

fn fail(error: impl Display) -> ExitCode {
    // Nothing can be done if stderr is closed.
    let _ = writeln!(io::stderr(), "error: {error}");
    ExitCode::from(FAILURE)
}
