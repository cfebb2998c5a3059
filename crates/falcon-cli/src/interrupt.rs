//! Ctrl-C and requests to terminate: the first one asks the work to stop when it can, the second ends the program at
//! once.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
#[cfg(unix)]
use std::{
    io::{self, Write},
    sync::{Once, mpsc},
};

use falcon_lm::monitor::Monitor;
#[cfg(unix)]
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ},
    iterator::Signals,
};

/// The message when `falcon train` is asked to stop.
pub(crate) const SAVING: &str = "saving after this step";

/// Whether a signal has arrived.
static STOP: AtomicBool = AtomicBool::new(false);
/// The exit code for the first signal.
static CODE: AtomicU8 = AtomicU8::new(INTERRUPTED);
/// The exit code after Ctrl-C by the convention of shells: 128 plus the number of the signal.
const INTERRUPTED: u8 = 130;
/// What is printed when the program is asked to stop. It changes in the course of the work.
static MESSAGE: Mutex<&str> = Mutex::new("stopping");

/// The exit code of an interrupted program: 130 after Ctrl-C, 143 after a request to terminate.
pub fn exit_code() -> u8 {
    // Waits until the message has been printed: see `wait`.
    let _printed = MESSAGE.lock().expect("nobody panics while holding it");
    CODE.load(Ordering::SeqCst)
}

/// A monitor that cancels when a signal has arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interrupt(());

impl Interrupt {
    /// Whether a signal has arrived.
    pub fn requested(self) -> bool {
        STOP.load(Ordering::SeqCst)
    }
}

impl Monitor for Interrupt {
    fn cancelled(&mut self) -> bool {
        self.requested()
    }
}

/// Listens for Ctrl-C and requests to terminate. The first one prints `message`, and the returned [`Interrupt`] then
/// cancels; the second one ends the program at once. On systems without Unix signals the first one already does.
pub(crate) fn stop_on_interrupt(message: &'static str) -> Interrupt {
    *MESSAGE.lock().expect("nobody panics while holding it") = message;
    #[cfg(unix)]
    listen();
    Interrupt(())
}

/// Turns writing beyond the file size limit (`ulimit -f`) into an error that can be reported. By default, the system
/// ends the program without a message.
pub fn report_file_size_limit() {
    #[cfg(unix)]
    {
        let exceeded = std::sync::Arc::new(AtomicBool::new(false));
        // If no handler can be installed, the limit ends the program as by default.
        let _ = signal_hook::flag::register(SIGXFSZ, exceeded);
    }
}

/// Waits for signals in a thread. If no thread can be started, the first signal ends the program.
#[cfg(unix)]
fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let (installed, ready) = mpsc::channel();
        let thread = std::thread::Builder::new().spawn(move || {
            if let Ok(signals) = Signals::new([SIGINT, SIGTERM, SIGHUP]) {
                let _ = installed.send(());
                wait(signals);
            }
        });
        if thread.is_ok() {
            // Fails if no handlers could be installed; then there is nothing to wait for.
            let _ = ready.recv();
        }
    });
}

#[cfg(unix)]
fn wait(mut signals: Signals) {
    for signal in &mut signals {
        let code = 128 + signal;
        if STOP.load(Ordering::SeqCst) {
            std::process::exit(code);
        }
        CODE.store(u8::try_from(code).unwrap_or(u8::MAX), Ordering::SeqCst);
        // The lock is held until the message has been printed, and `exit_code` waits for the lock: work that stops at
        // once would otherwise end the program before the message.
        let message = MESSAGE.lock().expect("nobody panics while holding it");
        STOP.store(true, Ordering::SeqCst);
        let _ = writeln!(io::stderr(), "\n{message}; once more to stop at once");
    }
}
