#include "share/credit_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "share/wire.h"

namespace vramkit::share {

CreditPage::CreditPage(int descriptor, bool writable) {
    if (descriptor < 0) return;
    struct stat status{};
    // A file that is shorter, or becomes so, would end the program at a look beyond its end.
    const int seals = fcntl(descriptor, F_GET_SEALS);
    if (seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(descriptor, &status) == 0 &&
        static_cast<std::uint64_t>(status.st_size) >= wire::kCreditPageBytes) {
        void* const page =
            mmap(nullptr, wire::kCreditPageBytes, writable ? PROT_READ | PROT_WRITE : PROT_READ,
                 MAP_SHARED, descriptor, 0);
        if (page != MAP_FAILED) counters_ = static_cast<std::atomic<std::uint64_t>*>(page);
    }
    close(descriptor);
}

CreditPage::~CreditPage() {
    if (counters_ != nullptr) munmap(counters_, wire::kCreditPageBytes);
}

}  // namespace vramkit::share
