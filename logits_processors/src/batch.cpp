#include "batch.hpp"

#include <utility>

#include "stages.hpp"

namespace constraints {

namespace {

// Of a cache line, so that no two threads write to one.
constexpr std::size_t kAlignment = 16;

// Rows that fetch their memory at the same time, and tokens a row up to which that is what takes the time.
constexpr std::size_t kTogether = 64;
constexpr std::size_t kFewTokens = 4;

constexpr std::size_t aligned(std::size_t words) { return (words + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

std::size_t Batch::memory_words(std::uint32_t vocabulary, std::size_t capacity) {
    return aligned(capacity) + capacity * aligned(MaskRow::words_for(vocabulary));
}

Batch::Batch(std::uint32_t vocabulary, std::size_t capacity, unsigned threads, std::uint32_t* memory)
    : vocabulary_(vocabulary),
      stride_(aligned(MaskRow::words_for(vocabulary))),
      masks_begin_(aligned(capacity)),
      own_memory_(memory == nullptr ? 4 * memory_words(vocabulary, capacity) : 0),
      memory_(memory == nullptr ? own_memory_.words() : memory),
      slots_(capacity),
      pool_(threads) {
    for (std::size_t place = 0; place < capacity; ++place)
        slots_[place].mask = MaskRow(memory_ + masks_begin_ + place * stride_, vocabulary, memory != nullptr);
}

Batch::~Batch() { wait(); }

void Batch::join() {
    is_started_ = false;
    pool_.join();
}

void Batch::release(std::size_t row) {
    if (row >= places_.size()) places_.resize(row + 1, -1);
    if (places_[row] < 0) return;
    is_memory_labelled_ = false;
    Slot& slot = slots_[static_cast<std::size_t>(places_[row])];
    slot.machine.reset();
    places_[row] = -1;
}

std::optional<std::size_t> Batch::put(std::size_t row, std::unique_ptr<Machine> machine, std::vector<Token> ends) {
    wait();
    release(row);
    if (!machine) return std::nullopt;
    // The lowest free place: what is copied to a device stays short.
    std::size_t place = 0;
    while (place < slots_.size() && slots_[place].machine) ++place;
    if (place == slots_.size()) throw std::length_error("more constrained rows than the batch has room for");
    Slot& slot = slots_[place];
    slot.machine = std::move(machine);
    slot.ends = std::move(ends);
    slot.output.clear();
    slot.consumed = 0;
    slot.must_reset = false;
    slot.is_current = false;
    places_[row] = static_cast<int>(place);
    is_memory_labelled_ = false;
    return place;
}

std::optional<std::size_t> Batch::place_of(std::size_t row) const {
    if (row >= places_.size() || places_[row] < 0) return std::nullopt;
    return static_cast<std::size_t>(places_[row]);
}

void Batch::remove(std::size_t row) {
    wait();
    release(row);
}

void Batch::move(std::size_t from, std::size_t to) {
    wait();
    if (from == to) return;
    release(to);
    if (from >= places_.size()) return;
    places_[to] = std::exchange(places_[from], -1);
    is_memory_labelled_ = false;
}

void Batch::swap(std::size_t one, std::size_t other) {
    wait();
    if (std::max(one, other) >= places_.size()) places_.resize(std::max(one, other) + 1, -1);
    std::swap(places_[one], places_[other]);
    is_memory_labelled_ = false;
}

std::vector<Batch::Constrained> Batch::constrained() const {
    std::vector<Constrained> rows;
    for (std::size_t row = 0; row < places_.size(); ++row)
        if (places_[row] >= 0) rows.push_back({row, static_cast<std::size_t>(places_[row])});
    return rows;
}

std::span<const Token> Batch::output(std::size_t place) const { return slots_[place].output; }

void Batch::cut(std::size_t place, std::size_t kept) {
    Slot& slot = slots_[place];
    if (kept == slot.output.size()) return;
    wait();
    slot.must_reset |= kept < slot.consumed;
    slot.output.resize(kept);
    slot.last = kept == 0 ? 0 : slot.output.back();
    slot.is_current = false;
}

void Batch::consume(Slot& slot) {
    if (slot.must_reset) {
        slot.machine->reset();
        slot.consumed = 0;
        slot.must_reset = false;
    }
    for (; slot.consumed + 1 < slot.output.size(); ++slot.consumed) slot.machine->advance(slot.output[slot.consumed]);
    if (slot.consumed == slot.output.size()) return;
    slot.machine->advance(slot.last);
    ++slot.consumed;
}

void Batch::compute(Slot& slot) {
    slot.machine->mask(slot.mask);
    if (slot.mask.allowed() == 0) {
        for (const Token end : slot.ends) slot.mask.allow(end);
        // Without a token to end with: an empty mask would make the sampler choose what is no number.
        if (slot.mask.allowed() == 0) slot.mask.allow_all();
        dead_ends_.fetch_add(1, std::memory_order_relaxed);
    }
    slot.is_current = true;
}

void Batch::start() {
    wait();
    begin(Pool::Wake::now);
}

void Batch::begin(Pool::Wake wake) {
    pending_.clear();
    std::size_t tokens = 0;
    for (std::size_t place = 0, used = used_places(); place < used; ++place) {
        const Slot& slot = slots_[place];
        if (!slot.machine || slot.is_current) continue;
        pending_.push_back(place);
        tokens += slot.output.size() - (slot.must_reset ? 0 : slot.consumed);
    }
    if (pending_.empty()) return;
    // A token each is soon done; one that comes back with all of its tokens is worth a thread.
    const std::size_t share = tokens <= kFewTokens * pending_.size() ? kTogether : 1;
    pool_.start(pending_.size(), share, [this](std::size_t first, std::size_t last) { compute_masks(first, last); }, wake);
    is_started_ = true;
}

void Batch::compute_masks(std::size_t first, std::size_t last) {
    const auto slot = [&](std::size_t index) -> Slot& { return slots_[pending_[first + index]]; };
    in_stages(
        last - first, [&](std::size_t index) { slot(index).mask.prefetch(); },
        [&](std::size_t index) { consume(slot(index)); }, [&](std::size_t index) { compute(slot(index)); });
}

void Batch::finish() {
    wait();
    begin(Pool::Wake::if_long);
    wait();
    if (std::exchange(is_memory_labelled_, true)) return;
    std::fill_n(memory_, used_places(), ~std::uint32_t{0});
    for (const auto& [row, place] : constrained()) memory_[place] = static_cast<std::uint32_t>(row);
}

void Batch::apply(const Logits& logits) {
    wait();
    const auto rows = constrained();
    if (rows.empty()) return;
    if (rows.back().row >= logits.rows) throw std::length_error("the logits have fewer rows than the batch");
    if (logits.columns != vocabulary_) throw std::invalid_argument("the logits are of another vocabulary");
    const std::size_t bytes = rows.size() * logits.columns * (logits.element == Element::float32 ? 4 : 2);
    const auto work = [&](std::size_t first, std::size_t last) {
        for (std::size_t index = first; index < last; ++index) {
            Slot& slot = slots_[rows[index].place];
            if (!slot.is_current) {
                consume(slot);
                compute(slot);
            }
            write_mask(logits, rows[index].row, slot.mask, bytes > kStreamingBytes);
        }
    };
    pool_.start(rows.size(), 1, work, Pool::Wake::now);
    pool_.join();
}

std::size_t Batch::used_places() const {
    std::size_t used = slots_.size();
    while (used > 0 && !slots_[used - 1].machine) --used;
    return used;
}

}  // namespace constraints
