/** Loads a classic script by its path relative to the page. This also works from disk, where fetch does not. */
export function loadScript(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const script = document.createElement('script')
    script.src = `./${path}`
    script.onload = () => resolve(true)
    script.onerror = () => resolve(false)
    document.head.append(script)
  })
}
