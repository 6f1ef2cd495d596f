"""Where each spilled job's record is, by the job's id and by its sequence number: some 40 bytes for a job.

Of an id a part of its hash is kept, and the record says whether it is the one; a record has a number, which is used
again when the job has left. What must never happen here: a job that is another than the one that was put there.
"""

from __future__ import annotations

import errno
from array import array
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
from msgspec import Raw

from leasemill.kernel.index.order import CHUNK_BITS
from leasemill.kernel.model import Job
from leasemill.store.file.format import checksum
from leasemill.store.file.spill.volumes import Volumes

BUCKET_BITS: Final = 10
BUCKET_MASK: Final = (1 << BUCKET_BITS) - 1
NUMBER_BITS: Final = 28
NUMBERS: Final = (1 << NUMBER_BITS) - 1
HASH_MASK: Final = (1 << 64) - 1 - NUMBERS
"""Of a hash the lowest bits choose the bucket, and these are kept there."""
NEXT_ENTRY: Final = (1 << NUMBER_BITS) + 1
"""From a sequence number and a record's number to those of the next job."""
CHUNK_MASK: Final = (1 << CHUNK_BITS) - 1

encode_job: Final = msgspec.msgpack.Encoder().encode
decode_job: Final = msgspec.msgpack.Decoder(Job).decode


class SpillIndex:
    """The jobs by id and by sequence number, in arrays of integers instead of objects.

    A record has a number: its index in the four arrays of locations, lengths, checksums and order keys. Two indexes
    lead to numbers. By id there are 1,024 sorted buckets; an entry is 36 bits of the id's hash and the 28 of the
    number, so a lookup is one bisection in a short array, and an insertion moves a few kilobytes. Two ids may share
    those bits: the record itself is compared. By sequence number there are chunks of 1,024, since pages and orders ask
    for runs of them. Python's `hash` of a text differs from process to process; that is harmless, for no entry leaves
    the process.

    `order_key` of a job is its position in the order it is in: see SpilledOrder."""

    def __init__(self, volumes: Volumes) -> None:
        self.volumes = volumes
        self._locations = array("Q")
        self._lengths = array("I")
        self._checksums = array("I")
        self._order_keys = array("Q")
        self._unused = array("I")
        self._by_id = [array("Q") for _ in range(1 << BUCKET_BITS)]
        self._is_unsorted = bytearray(1 << BUCKET_BITS)
        self._by_seq: dict[int, array[int]] = {}
        self.chunk_numbers: list[int] = []
        self.count = 0
        self.copies: dict[str, Job] = {}
        """Jobs that an order has just read, for the caller that takes them out next: each is handed out once."""

    # Putting in and taking out

    def add(
        self,
        ids: Sequence[str],
        seqs: Sequence[int],
        order_keys: Sequence[int],
        locations: Sequence[int],
        records: Sequence[bytes],
    ) -> None:
        """In the order of their sequence numbers."""
        numbers = self._numbers(order_keys, locations, records)
        buckets, is_unsorted = self._by_id, self._is_unsorted
        for hashed, number in zip(map(hash, ids), numbers, strict=True):
            bucket = self._bucket(hashed) if is_unsorted[hashed & BUCKET_MASK] else buckets[hashed & BUCKET_MASK]
            insort(bucket, hashed & HASH_MASK | number)
        begin = 0
        while begin < len(seqs):
            chunk = self._chunk(seqs[begin])
            end = bisect_left(seqs, (seqs[begin] | CHUNK_MASK) + 1, begin)
            entries = [
                (seq & CHUNK_MASK) << NUMBER_BITS | number
                for seq, number in zip(seqs[begin:end], numbers[begin:end], strict=True)
            ]
            if chunk and entries[0] < chunk[-1]:
                for entry in entries:
                    insort(chunk, entry)
            else:
                chunk.extend(entries)
            begin = end
        self.count += len(ids)

    def load(
        self,
        ids: Sequence[str],
        seqs: Sequence[int],
        order_keys: Sequence[int],
        locations: Iterable[int],
        records: Sequence[Raw],
    ) -> None:
        """The same, for an index that nothing has left yet; `end_loading` when all are there."""
        first, buckets = len(self._locations), self._by_id
        for number, hashed in enumerate(map(hash, ids), first):
            buckets[hashed & BUCKET_MASK].append(hashed & HASH_MASK | number)
        self._load_seqs(seqs, first)
        self._order_keys.extend(order_keys)
        self._locations.extend(locations)
        self._lengths.extend(map(len, records))
        self._checksums.extend(map(checksum, records))
        self.count += len(ids)

    def _load_seqs(self, seqs: Sequence[int], number: int) -> None:
        """Chunk by chunk; nearly always no sequence number is missing."""
        begin = 0
        while begin < len(seqs):
            seq = seqs[begin]
            end = bisect_left(seqs, (seq | CHUNK_MASK) + 1, begin)
            count, entry = end - begin, (seq & CHUNK_MASK) << NUMBER_BITS | number + begin
            if seqs[end - 1] - seq == count - 1:
                self._chunk(seq).extend(range(entry, entry + count * NEXT_ENTRY, NEXT_ENTRY))
            else:
                self._chunk(seq).extend(
                    (one & CHUNK_MASK) << NUMBER_BITS | number + index
                    for index, one in enumerate(seqs[begin:end], begin)
                )
            begin = end

    def _numbers(self, order_keys: Sequence[int], locations: Sequence[int], records: Sequence[bytes]) -> Sequence[int]:
        """Numbers for records, which then have them: those that are not used any more, then new ones."""
        used_again: list[int] = []
        for order_key, location, record in zip(order_keys, locations, records, strict=True):
            if not self._unused:
                break
            number = self._unused.pop()
            self._locations[number], self._lengths[number] = location, len(record)
            self._checksums[number], self._order_keys[number] = checksum(record), order_key
            used_again.append(number)
        done, first = len(used_again), len(self._locations)
        self._locations.extend(locations[done:])
        self._lengths.extend(map(len, records[done:]))
        self._checksums.extend(map(checksum, records[done:]))
        self._order_keys.extend(order_keys[done:])
        new = range(first, len(self._locations))
        return [*used_again, *new] if used_again else new

    def end_loading(self) -> None:
        if len(self._locations) > NUMBERS:
            raise OverflowError("more jobs than an index can hold")
        self._is_unsorted[:] = b"\1" * len(self._is_unsorted)

    def _bucket(self, hashed: int) -> array[int]:
        """Where an id's entry is; those that were loaded are sorted when they are first needed."""
        place = hashed & BUCKET_MASK
        if self._is_unsorted[place]:
            self._is_unsorted[place] = 0
            self._by_id[place] = array("Q", sorted(self._by_id[place]))
        return self._by_id[place]

    def _chunk(self, seq: int) -> array[int]:
        chunk = self._by_seq.get(seq >> CHUNK_BITS)
        if chunk is None:
            chunk = self._by_seq[seq >> CHUNK_BITS] = array("Q")
            insort(self.chunk_numbers, seq >> CHUNK_BITS)
        return chunk

    def remove(self, job: Job) -> None:
        """Forget a job that is not spilled any more; its record is not wanted."""
        seq = job.seq
        number = self._number_of(seq)
        assert number is not None
        hashed = hash(job.spec.id)
        bucket = self._bucket(hashed)
        entry = hashed & HASH_MASK | number
        at = bisect_left(bucket, entry)
        assert bucket[at] == entry
        del bucket[at]
        chunk = self._by_seq[seq >> CHUNK_BITS]
        del chunk[bisect_left(chunk, (seq & CHUNK_MASK) << NUMBER_BITS)]
        if not chunk:
            del self._by_seq[seq >> CHUNK_BITS]
            del self.chunk_numbers[bisect_left(self.chunk_numbers, seq >> CHUNK_BITS)]
        self.copies.pop(job.spec.id, None)
        self.volumes.free(self._locations[number])
        self._unused.append(number)
        self.count -= 1

    # Finding

    def holds(self, job_id: str) -> bool:
        """Whether this job is spilled. Nearly always the part of its hash that is kept shows that it is not."""
        hashed = hash(job_id)
        place = hashed & BUCKET_MASK
        bucket = self._bucket(hashed) if self._is_unsorted[place] else self._by_id[place]
        part = hashed & HASH_MASK
        at = bisect_left(bucket, part)
        return at < len(bucket) and bucket[at] & HASH_MASK == part and self.find(job_id) is not None

    def find(self, job_id: str) -> Job | None:
        if not self.count:
            return None
        copy = self.copies.pop(job_id, None)
        if copy is not None:
            return copy
        hashed = hash(job_id)
        bucket = self._bucket(hashed)
        part = hashed & HASH_MASK
        at = bisect_left(bucket, part)
        while at < len(bucket) and bucket[at] & HASH_MASK == part:
            job = self._load(bucket[at] & NUMBERS)
            if job.spec.id == job_id:
                return job
            at += 1
        return None

    def get(self, seq: int) -> Job | None:
        number = self._number_of(seq)
        return None if number is None else self._load(number)

    def order_key(self, seq: int) -> int | None:
        number = self._number_of(seq)
        return None if number is None else self._order_keys[number]

    def seqs(self, chunk_number: int) -> Iterator[int]:
        """The sequence numbers in a chunk, in order."""
        first = chunk_number << CHUNK_BITS
        for entry in self._by_seq.get(chunk_number, ()):
            yield first | entry >> NUMBER_BITS

    def _number_of(self, seq: int) -> int | None:
        chunk = self._by_seq.get(seq >> CHUNK_BITS)
        if chunk is None:
            return None
        low = seq & CHUNK_MASK
        at = bisect_left(chunk, low << NUMBER_BITS)
        if at == len(chunk) or chunk[at] >> NUMBER_BITS != low:
            return None
        return chunk[at] & NUMBERS

    def _load(self, number: int) -> Job:
        return decode_job(self._read(number))

    def _read(self, number: int) -> bytes:
        record = self.volumes.read(self._locations[number], self._lengths[number])
        if checksum(record) != self._checksums[number]:
            raise OSError(errno.EIO, "a job that was put aside on disk cannot be read back")
        return record

    # Scratch files

    def compact(self) -> None:
        """Move what is left in a scratch file that few records are wanted from, so that it can be closed."""
        while (sparse := self.volumes.sparse()) is not None:
            numbers = [number for number in self._used() if self.volumes.holds(sparse, self._locations[number])]
            records = [self._read(number) for number in numbers]
            for number, location in zip(numbers, self.volumes.write(records), strict=True):
                self.volumes.free(self._locations[number])
                self._locations[number] = location

    def _used(self) -> Iterator[int]:
        for chunk in self._by_seq.values():
            for entry in chunk:
                yield entry & NUMBERS
