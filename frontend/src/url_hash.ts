/** Where the link of a view is stored: in the hash of the page's own address, or nowhere in a notebook. */

export interface UrlHash {
  read(): string
  /** The back button undoes a change that is `undoable`. */
  write(hash: string, undoable: boolean): void
}

export const PAGE_HASH: UrlHash = {
  read: () => location.hash,
  write(hash, undoable) {
    if (hash === (location.hash || '#')) return
    if (undoable) history.pushState(null, '', hash)
    else history.replaceState(history.state, '', hash)
  },
}

export const NO_HASH: UrlHash = { read: () => '', write: () => undefined }

/** An address without the access token, so that it can be shared. */
export function withoutToken(address: string): string {
  const url = new URL(address)
  if (!url.searchParams.has('token')) return address
  url.searchParams.delete('token')
  return url.href
}
