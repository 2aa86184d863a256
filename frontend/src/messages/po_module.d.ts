declare module '*.po' {
  /** Loads the catalogue: English template → translation. */
  const load: () => Promise<Record<string, string>>
  export default load
}
