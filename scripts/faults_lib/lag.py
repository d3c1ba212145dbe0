"""How long processes wait for a processor, as the kernel counts it: the machine's part in a late permit."""

import contextlib
import os

# How long a process may wait without a permit of a window of 1 s being late: its guard.
SHORT = 0.01
# Every so many looks the threads are listed anew.
LIST_EVERY = 25


class ProcessorWaits:
    """Looks at how long each thread of some processes has waited for a processor. `seen` has the longest wait of a thread between two
    looks, and when it was seen, where it is longer than `SHORT`."""

    def __init__(self, processes):
        self.processes, self.seen, self.files, self.waited, self.looks = processes, [], {}, {}, 0

    def look(self, at):
        if self.looks % LIST_EVERY == 0:
            self._list()
        self.looks += 1
        longest = 0
        for path, file in list(self.files.items()):
            try:
                waited = int(os.pread(file, 100, 0).split()[1])
            except (OSError, IndexError):  # the thread has ended
                os.close(self.files.pop(path))
                continue
            longest = max(longest, waited - self.waited.get(path, waited))
            self.waited[path] = waited
        if longest / 1e9 > SHORT:
            self.seen.append((at, longest / 1e9))

    def _list(self):
        for process in self.processes():
            tasks = f"/proc/{process.pid}/task"
            with contextlib.suppress(OSError):
                for thread in os.listdir(tasks):
                    path = f"{tasks}/{thread}/schedstat"
                    if path not in self.files:
                        self.files[path] = os.open(path, os.O_RDONLY)

    def between(self, begin, end):
        """Returns the sum of the waits in a stretch of time."""
        return sum(wait for at, wait in self.seen if begin <= at <= end)

    def close(self):
        for file in self.files.values():
            os.close(file)
        self.files.clear()
