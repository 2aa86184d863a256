/** Where the link of a view stands: after # in the address of a page of our own, or nowhere in a notebook, whose address is not ours. */

export interface Address {
  read(): string
  /** A change that is `kept` can be undone by the back button. */
  write(hash: string, kept: boolean): void
}

export const OWN: Address = {
  read: () => location.hash,
  write(hash, kept) {
    if (hash === (location.hash || '#')) return
    if (kept) history.pushState(null, '', hash)
    else history.replaceState(history.state, '', hash)
  },
}

export const NOWHERE: Address = { read: () => '', write: () => undefined }
